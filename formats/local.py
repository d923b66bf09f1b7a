"""An index in a folder of a local or shared file system with hard links.

A file becomes visible by a hard link, which fails when the name exists: nothing that another
process may have mapped is ever replaced, and the first writer of a name wins.
"""

from __future__ import annotations

import errno
import math
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from sift_index.formats.errors import IntegrityError
from sift_index.formats.problems import cannot_remove, cannot_write, damaged, unreadable
from sift_index.formats.storage import TEMP_PREFIX, ReadPiece


class LocalStorage:
    """`Storage` by the operating system's calls; files are synced before they appear."""

    clock_step = 0.0

    def create(self, root: Path, folders: Sequence[Path]) -> None:
        """Make the folders; raise BuildError when the file system refuses."""
        for folder in folders:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise cannot_write(folder, error) from error

    def require_writable(self, folders: Sequence[Path]) -> None:
        """Raise BuildError for a folder that refuses a file; leaves none behind."""
        for folder in folders:
            try:
                os.unlink(_write_temp(folder, b""))
            except OSError as error:
                raise cannot_write(folder, error) from error

    def require_real_folders(self, folders: Sequence[Path]) -> None:
        """Raise IntegrityError for a folder that is a link."""
        for folder in folders:
            with _read_errors(folder):
                linked = folder.is_symlink()
            if linked:
                raise IntegrityError(
                    f"{folder}: expected a folder, found a link; replace the link by the folder"
                    " it stands for"
                )

    def absence(self, root: Path) -> str:
        """Say what is there instead of an index."""
        return "a folder without manifests" if os.path.isdir(root) else "no such folder"

    def put_if_absent(self, path: Path, data: bytes) -> bool:
        """Publish `data` unless the name exists; it appears whole and synced, or not at all."""
        try:
            temp = _write_temp(path.parent, data)
            try:
                os.link(temp, path)
            except FileExistsError:
                return False
            finally:
                os.unlink(temp)
            _sync_folder(path.parent)
        except OSError as error:
            raise cannot_write(path, error) from error
        return True

    def put_folder_if_absent(self, folder: Path, files: Mapping[str, bytes]) -> bool:
        """Publish a folder, filled under a temporary name; an empty one counts as absent."""
        temp = folder.parent / f"{TEMP_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        try:
            temp.mkdir(parents=True)
            for name, data in files.items():
                self.put_if_absent(temp / name, data)
            os.rename(temp, folder)
            _sync_folder(folder.parent)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                return False
            raise cannot_write(folder, error) from error
        finally:
            shutil.rmtree(temp, ignore_errors=True)
        return True

    def replace(self, path: Path, data: bytes) -> None:
        """Write or replace a small file that nobody maps; raise BuildError on OSError."""
        try:
            temp = _write_temp(path.parent, data)
            try:
                os.replace(temp, path)
            except OSError:
                os.unlink(temp)
                raise
            _sync_folder(path.parent)
        except OSError as error:
            raise cannot_write(path, error) from error

    def freshen(self, path: Path) -> bool:
        """Set the modification time to now; False when the file is gone."""
        try:
            os.utime(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise cannot_write(path, error) from error
        return True

    def remove(self, found: Sequence[Path]) -> None:
        """Remove files and temporary folders in this order, and sync the folders they were in."""
        for path in found:
            try:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    os.unlink(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise cannot_remove(path, error) from error
        for folder in sorted({path.parent for path in found}):
            with suppress(FileNotFoundError):  # a temporary folder goes with what it held
                _sync_folder(folder)

    def read(self, path: Path, limit: int) -> bytes:
        """Return the bytes of a regular file of at most `limit` bytes, or raise IntegrityError."""
        size = self.size(path)
        if size > limit:
            raise damaged(path, f"at most {limit} bytes", size)
        with _read_errors(path):
            return path.read_bytes()

    def map(self, path: Path, size: int, sha256: str = "") -> pa.Buffer:
        """Map a regular file of exactly `size` bytes; its hash is left to who needs it.

        The descriptor is closed at once (the mapping stays), because an index may have more packs
        than a process may have open files.
        """
        found = self.size(path)
        if found != size or not size:
            raise damaged(path, f"{size} bytes", found)
        try:
            with pa.memory_map(str(path)) as source:
                return source.read_buffer()
        except (OSError, pa.ArrowException) as error:
            raise unreadable(path, "a file that can be mapped", error) from error

    @contextmanager
    def pieces(self, path: Path, size: int) -> Iterator[ReadPiece]:
        """Open a regular file of exactly `size` bytes; nothing of it stays mapped."""
        found = self.size(path)
        if found != size:
            raise damaged(path, f"{size} bytes", found)
        with _read_errors(path):
            file = path.open("rb", buffering=0)

        def read(start: int, count: int) -> bytes:
            with _read_errors(path):
                return os.pread(file.fileno(), count, start)

        with file:
            yield read

    def refetch(self, path: Path, size: int, sha256: str) -> None:
        """Do nothing: a mapping is the file itself."""

    def size(self, path: Path) -> int:
        """Return the size of a regular file; IntegrityError for none, or a link or folder."""
        try:
            status = path.lstat()
        except OSError as error:
            raise unreadable(path, "a file", error) from error
        if not stat.S_ISREG(status.st_mode):
            raise IntegrityError(
                f"{path}: expected a regular file, found {stat.filemode(status.st_mode)};"
                " replace the link by the file it stands for"
            )
        return status.st_size

    def names(self, folder: Path) -> list[str]:
        """Return all names in a folder; none for a missing folder."""
        try:
            return os.listdir(folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unreadable(folder, "a readable folder", error) from error

    def sizes(self, folder: Path) -> dict[str, int]:
        """Return the bytes of the regular files in a folder; none for a missing folder."""
        found = {}
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # removed since it was listed
                        if entry.is_file(follow_symlinks=False):
                            found[entry.name] = entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise unreadable(folder, "a readable folder", error) from error
        return found

    def modified(self, path: Path) -> float:
        """Return when a file, or the newest of a folder, was written; see `Storage`."""
        try:
            below = path.iterdir() if path.is_dir() else ()
            times = (path.lstat().st_mtime, *(self.modified(child) for child in below))
            return max(*times, 0.0)
        except FileNotFoundError:
            return 0.0
        except OSError:
            return math.inf

    def total(self, path: Path) -> int:
        """Return the bytes of a file or folder; 0 where there is none, or none to be seen."""
        with suppress(OSError):
            below = path.iterdir() if path.is_dir() else ()
            return sum(map(self.total, below)) if path.is_dir() else path.lstat().st_size
        return 0


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unreadable(path, "a readable file", error) from error


def _write_temp(folder: Path, data: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    temp = folder / f"{TEMP_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
    # Not tempfile: its mode 0600 would hide the index from other users whatever the umask says.
    handle = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with suppress(OSError):
            os.unlink(temp)
        raise
    return temp


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
