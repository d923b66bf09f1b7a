"""Which small files of an index belong to one version, and so travel with an export of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from sift_index.formats.canonical import load_checked
from sift_index.formats.errors import IntegrityError
from sift_index.formats.fields import Fields
from sift_index.formats.manifest import Manifest
from sift_index.formats.problems import damaged
from sift_index.formats.receipts import Receipt
from sift_index.formats.store import IndexPaths, file_names, plain_name, read_file

_FOLDERS = ("commits", "failed", "probes")


@dataclass
class SideFiles:
    """The files of one version, read one by one; counted as they pass.

    Receipts travel when the version names their pack, or their pack is empty (every document of
    the unit failed). `left_out` counts those of units that wait for a version.
    """

    paths: IndexPaths
    manifest: Manifest
    receipts: int = 0
    failed: int = 0
    probes: int = 0
    left_out: int = 0

    def manifest_bytes(self) -> bytes:
        """Return the manifest as it lies there."""
        return read_file(self.paths.manifest_path(self.manifest.version))

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        """Yield (name in the index folder, bytes), the manifest first; raise IntegrityError."""
        yield self.paths.manifest_path(self.manifest.version).name, self.manifest_bytes()
        yield from self._receipts()
        for name, data in _checked_files(self.paths, "failed"):
            self.failed += 1
            yield name, data
        for name in file_names(self.paths.probes, ""):
            self.probes += 1
            place = side_name(f"probes/{name}", self.paths.probes)
            yield str(place), read_file(self.paths.root / place)

    def _receipts(self) -> Iterator[tuple[str, bytes]]:
        packs = {pack.name for pack in self.manifest.packs}
        units = set(self.manifest.units)
        for name, data in _checked_files(self.paths, "commits"):
            receipt = read_side_receipt(name, data)
            if receipt.pack.name in packs or not receipt.pack.rows:
                self.receipts += 1
                yield name, data
            else:
                self.left_out += receipt.unit not in units


def read_side_receipt(name: str, data: bytes) -> Receipt:
    """Return a receipt from its bytes, wherever they lie; IntegrityError for damaged ones."""
    return Receipt.from_json(Fields(load_checked(data, name), name))


def side_name(name: str, where: object) -> PurePosixPath:
    """Return a file's name in an index folder; IntegrityError for one that leads elsewhere."""
    *folders, file = name.split("/")
    plain_name(file, where)
    if folders and (len(folders) > 1 or folders[0] not in _FOLDERS):
        raise damaged(where, f"a file of {_FOLDERS}", repr(name), "do not use it: it was forged")
    return PurePosixPath(name)


def _checked_files(paths: IndexPaths, folder: str) -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes) of JSON files; those that `gc` or a build removes meanwhile are no loss.

    No version needs such a file, for what it needs is never removed while it is there.
    """
    for file in file_names(paths.root / folder, ".json"):
        path = paths.root / folder / file
        try:
            data = read_file(path)
        except IntegrityError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            continue
        load_checked(data, path)
        yield f"{folder}/{file}", data
