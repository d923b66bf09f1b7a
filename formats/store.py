"""The only module that writes to an index: where files lie and how they appear, whole or not.

A file becomes visible by a hard link, which fails when the name exists: nothing that another
process may have mapped is ever replaced, and the first writer of a name wins.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from sift_index.formats.errors import IntegrityError
from sift_index.formats.problems import cannot_remove, cannot_write, damaged, unreadable

TEMP_PREFIX = ".tmp-"
MAX_JSON_BYTES = 1 << 28
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}\Z")


@dataclass(frozen=True)
class IndexPaths:
    """Names of everything inside one index folder."""

    root: Path

    @property
    def packs(self) -> Path:
        """Folder of the packs."""
        return self.root / "packs"

    @property
    def commits(self) -> Path:
        """Folder of the receipts."""
        return self.root / "commits"

    @property
    def failed(self) -> Path:
        """Folder of the documents that cannot be indexed."""
        return self.root / "failed"

    @property
    def probes(self) -> Path:
        """Folder of the probe texts that were taken from the corpus; no reader needs it."""
        return self.root / "probes"

    def manifest_path(self, version: int) -> Path:
        """Return the path of one version's manifest."""
        return self.root / f"manifest-{version:08d}.json"

    def keytable_path(self, version: int) -> Path:
        """Return the path of one version's key table."""
        return self.root / f"keys-{version:08d}.arrow"

    def pack_path(self, name: str) -> Path:
        """Return the path of a pack; raise IntegrityError unless it is a plain file name."""
        return self.packs / plain_name(name, self.packs)

    def receipt_path(self, unit: str) -> Path:
        """Return the path of a unit's receipt; raise IntegrityError unless `unit` is plain."""
        return self.commits / f"{plain_name(unit, self.commits)}.json"

    def require_real_folders(self) -> None:
        """Raise IntegrityError when a folder inside the index is a link to somewhere else."""
        for folder in (self.packs, self.commits, self.failed):
            if folder.is_symlink():
                raise IntegrityError(
                    f"{folder}: expected a folder, found a link; replace the link by the folder"
                    " it stands for"
                )

    def create(self) -> None:
        """Make the folders; raise BuildError when the file system refuses."""
        for folder in (self.packs, self.commits, self.failed):
            _make_folder(folder)


def plain_name(name: str, where: object) -> str:
    """Return `name` if it is a plain file name: no separator, no leading dot, nothing to escape.

    Raises IntegrityError otherwise, because names come from files that anyone may have written.
    """
    if not _PLAIN.match(name) or ".." in name:
        expected = "a plain file name (letters, digits, '.', '_', '-')"
        raise damaged(where, expected, repr(name), "do not use this index: it was tampered with")
    return name


def write_if_absent(path: Path, data: bytes) -> bool:
    """Publish `data` under `path` unless the name exists; say whether this call did it.

    The file appears whole and synced or not at all. Raises BuildError on OSError.
    """
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


def write_folder_if_absent(folder: Path, files: Mapping[str, bytes]) -> bool:
    """Publish a folder of small files under plain names; say whether this call did it.

    It appears whole or not at all, and never beside files of another writer: what must agree must
    not come from two. An empty folder counts as absent. Raises BuildError on OSError.
    """
    temp = folder.parent / f"{TEMP_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
    try:
        temp.mkdir(parents=True)
        for name, data in files.items():
            write_if_absent(temp / plain_name(name, folder), data)
        os.rename(temp, folder)
        _sync_folder(folder.parent)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            return False
        raise cannot_write(folder, error) from error
    finally:
        shutil.rmtree(temp, ignore_errors=True)
    return True


def replace_atomically(path: Path, data: bytes) -> None:
    """Write or replace a small file that nobody maps (failed/*.json only).

    Raises BuildError on OSError.
    """
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


def freshen(path: Path) -> bool:
    """Mark a file that is used again as young, for `gc` to keep; False when it is gone.

    Raises BuildError on another OSError.
    """
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise cannot_write(path, error) from error
    return True


def remove_all(found: Sequence[Path]) -> None:
    """Remove files, and temporary folders, in this order; what is gone already is no error.

    Folders are synced at the end: a crash later on does not bring back what was removed. Raises
    BuildError on OSError.
    """
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


def read_file(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """Return the bytes of a regular file of at most `limit` bytes, or raise IntegrityError."""
    size = regular_size(path)
    if size > limit:
        raise damaged(path, f"at most {limit} bytes", size)
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, "a readable file", error) from error


def map_file(path: Path, size: int) -> pa.Buffer:
    """Map a regular file of exactly `size` bytes read-only; all processes share one copy.

    The descriptor is closed at once (the mapping stays), because an index may have more packs
    than a process may have open files. Raises IntegrityError.
    """
    found = regular_size(path)
    if found != size or not size:
        raise damaged(path, f"{size} bytes", found)
    try:
        with pa.memory_map(str(path)) as source:
            return source.read_buffer()
    except (OSError, pa.ArrowException) as error:
        raise unreadable(path, "a file that can be mapped", error) from error


def regular_size(path: Path) -> int:
    """Return the size of a regular file; raise IntegrityError for none, or a link or folder."""
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


def require_size(path: Path, size: int) -> None:
    """Raise IntegrityError unless `path` is a regular file of `size` bytes."""
    found = regular_size(path)
    if found != size:
        raise damaged(path, f"{size} bytes", found)


def file_names(folder: Path, suffix: str) -> list[str]:
    """Return the sorted names in `folder` with `suffix`, without leftover temporary files."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(folder, "a readable folder", error) from error
    return sorted(n for n in names if n.endswith(suffix) and not n.startswith(TEMP_PREFIX))


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


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
