"""Where the files of an index lie, and the only way to them: by name, whole or not at all.

Nothing else in the format touches a disk or an object store. A path says where it lies; what has
to happen there is for `local` or `remote` to know.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pyarrow as pa

from sift_index.formats.local import LocalStorage
from sift_index.formats.location import Location, RemotePath
from sift_index.formats.problems import damaged
from sift_index.formats.remote import RemoteStorage
from sift_index.formats.storage import MAX_JSON_BYTES, TEMP_PREFIX, Place, ReadPiece, Storage

__all__ = ["MAX_JSON_BYTES", "TEMP_PREFIX", "IndexPaths", "plain_name", "write_if_absent"]

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}\Z")
_LOCAL, _REMOTE = LocalStorage(), RemoteStorage()


def storage_of(path: Location) -> Storage:
    """Return what answers for a path."""
    return _REMOTE if isinstance(path, RemotePath) else _LOCAL


@dataclass(frozen=True)
class IndexPaths:
    """Names of everything inside one index: below a folder, or a prefix of an object store."""

    root: Place

    @property
    def packs(self) -> Place:
        """Folder of the packs."""
        return self.root / "packs"

    @property
    def commits(self) -> Place:
        """Folder of the receipts."""
        return self.root / "commits"

    @property
    def failed(self) -> Place:
        """Folder of the documents that cannot be indexed."""
        return self.root / "failed"

    @property
    def probes(self) -> Place:
        """Folder of the probe texts that were taken from the corpus; no reader needs it."""
        return self.root / "probes"

    @property
    def state(self) -> Place:
        """Folder of what running builds say about themselves; no reader needs it."""
        return self.root / "state"

    def manifest_path(self, version: int) -> Place:
        """Return the path of one version's manifest."""
        return self.root / f"manifest-{version:08d}.json"

    def keytable_path(self, version: int) -> Place:
        """Return the path of one version's key table."""
        return self.root / f"keys-{version:08d}.arrow"

    def pack_path(self, name: str) -> Place:
        """Return the path of a pack; raise IntegrityError unless it is a plain file name."""
        return self.packs / plain_name(name, self.packs)

    def receipt_path(self, unit: str) -> Place:
        """Return the path of a unit's receipt; raise IntegrityError unless `unit` is plain."""
        return self.commits / f"{plain_name(unit, self.commits)}.json"

    def require_real_folders(self) -> None:
        """Raise IntegrityError when a folder inside the index is a link to somewhere else."""
        folders = (self.packs, self.commits, self.failed, self.state)
        storage_of(self.root).require_real_folders(folders)

    def create(self) -> None:
        """Make the folders; raise BuildError when the file system refuses.

        StorageError for a bucket that is not there.
        """
        storage_of(self.root).create(self.root, (self.packs, self.commits, self.failed))

    def require_writable(self) -> None:
        """Raise BuildError for folders that take no packs or receipts, before any are made."""
        storage_of(self.root).require_writable((self.packs, self.commits))

    def name_of(self, path: Location) -> str:
        """Return the name of a file inside the index, such as `packs/x.arrow`."""
        return str(path)[len(str(self.root)) :].replace(os.sep, "/").lstrip("/")

    def absence(self) -> str:
        """Say what is there instead of an index."""
        return storage_of(self.root).absence(self.root)

    def leftovers(self) -> list[Location]:
        """Return temporary files and folders, without what lies in the latter."""
        folders = (self.root, self.packs, self.commits, self.failed, self.state)
        found = ((folder, storage_of(folder).names(folder)) for folder in folders)
        return [
            folder / name
            for folder, names in found
            for name in sorted(names)
            if name.startswith(TEMP_PREFIX)
        ]


def plain_name(name: str, where: object) -> str:
    """Return `name` if it is a plain file name: no separator, no leading dot, nothing to escape.

    Raises IntegrityError otherwise, because names come from files that anyone may have written.
    """
    if not _PLAIN.match(name) or ".." in name:
        expected = "a plain file name (letters, digits, '.', '_', '-')"
        raise damaged(where, expected, repr(name), "do not use this index: it was tampered with")
    return name


def write_if_absent(path: Location, data: bytes) -> bool:
    """Publish `data` under `path` unless the name exists; say whether this call did it.

    The file appears whole and synced or not at all. Raises BuildError or StorageError.
    """
    return storage_of(path).put_if_absent(path, data)


def write_folder_if_absent(folder: Location, files: Mapping[str, bytes]) -> bool:
    """Publish a folder of small files under plain names; say whether this call did it.

    It appears whole or not at all, and never beside files of another writer: what must agree must
    not come from two. An empty folder counts as absent. Raises BuildError, or UsageError in an
    object store, where several objects cannot appear at once.
    """
    for name in files:
        plain_name(name, folder)
    return storage_of(folder).put_folder_if_absent(folder, files)


def replace_atomically(path: Location, data: bytes) -> None:
    """Write or replace a small file that nobody maps (failed/*.json and state/*.json only).

    Raises BuildError or StorageError.
    """
    storage_of(path).replace(path, data)


def freshen(path: Location) -> bool:
    """Mark a file that is used again as young, for `gc` to keep; False when it is gone.

    Raises BuildError or StorageError.
    """
    return storage_of(path).freshen(path)


def remove_all(found: Sequence[Location]) -> None:
    """Remove files, and temporary folders, in this order; what is gone already is no error.

    Folders are synced at the end: a crash later on does not bring back what was removed. Raises
    BuildError or StorageError.
    """
    if found:
        storage_of(found[0]).remove(found)


def read_file(path: Location, limit: int = MAX_JSON_BYTES) -> bytes:
    """Return the bytes of a regular file of at most `limit` bytes, or raise IntegrityError."""
    return storage_of(path).read(path, limit)


def map_file(path: Location, size: int, sha256: str) -> pa.Buffer:
    """Map a file of exactly `size` bytes read-only; all processes share one copy.

    Of an object a local copy is mapped, whose SHA-256 is checked; a file's is left to who needs
    it. Raises IntegrityError.
    """
    return storage_of(path).map(path, size, sha256)


def file_pieces(path: Location, size: int) -> AbstractContextManager[ReadPiece]:
    """Open a file of exactly `size` bytes to read pieces of it; nothing is mapped or kept.

    Yields a function of (first byte, number of bytes). Its SHA-256 is not checked, for that takes
    all of it. Raises IntegrityError or StorageError.
    """
    return storage_of(path).pieces(path, size)


def refetch(path: Location, size: int, sha256: str) -> None:
    """Let the next `map_file` see what is stored now: copies of objects are fetched again."""
    storage_of(path).refetch(path, size, sha256)


def regular_size(path: Location) -> int:
    """Return the size of a regular file; raise IntegrityError for none, or a link or folder."""
    return storage_of(path).size(path)


def file_sizes(folder: Location) -> dict[str, int]:
    """Return the bytes of the regular files in a folder by name, which asks for no file alone."""
    return storage_of(folder).sizes(folder)


def require_size(path: Location, size: int) -> None:
    """Raise IntegrityError unless `path` is a regular file of `size` bytes."""
    found = regular_size(path)
    if found != size:
        raise damaged(path, f"{size} bytes", found)


def require_sizes(folder: Location, sizes: Mapping[str, int]) -> None:
    """Raise IntegrityError unless regular files of these names and sizes are in a folder.

    The folder is listed once; what its listing does not show is asked for alone.
    """
    found = file_sizes(folder)
    for name, size in sizes.items():
        if found.get(name) != size:
            require_size(folder / name, size)


def file_names(folder: Location, suffix: str) -> list[str]:
    """Return the sorted names in `folder` with `suffix`, without leftover temporary files."""
    names = storage_of(folder).names(folder)
    return sorted(n for n in names if n.endswith(suffix) and not n.startswith(TEMP_PREFIX))
