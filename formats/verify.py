"""Checking a whole index: every byte that any version, receipt or failure record relies on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sift_index.formats.errors import FormatError, IntegrityError
from sift_index.formats.failures import find_failure
from sift_index.formats.fileinfo import PackInfo
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.keytable import KeyTable
from sift_index.formats.location import Location
from sift_index.formats.manifest import Manifest, open_keytable, read_manifest, versions
from sift_index.formats.packs import Pack
from sift_index.formats.problems import damaged
from sift_index.formats.receipts import Receipt, read_receipt
from sift_index.formats.store import IndexPaths, file_names, refetch, regular_size

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class VerifyReport:
    """What was checked: files, bytes and rows, the problems found, and files nobody names."""

    files: int
    bytes: int
    rows: int
    problems: tuple[FormatError, ...]
    garbage: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether no problem was found; garbage is none."""
        return not self.problems

    def require_clean(self) -> None:
        """Raise the problem if there is one, or an IntegrityError listing all of them."""
        if len(self.problems) == 1:
            raise self.problems[0]
        if self.problems:
            listed = "".join(f"\n  {problem}" for problem in self.problems)
            raise IntegrityError(f"{len(self.problems)} problems:{listed}")


def verify_index(paths: IndexPaths, full: bool = True, version: int | None = None) -> VerifyReport:
    """Check manifests, key tables and packs of all versions, receipts and failure records.

    `full` re-hashes packs and decodes every row; otherwise sizes and structure are checked.
    `version` checks only what that version needs, and looks for no garbage. Problems are
    collected, not raised, so that one report shows all of them.
    """
    walk = _Walk(paths, full)
    if version is not None:
        return _verify_version(walk, version)
    walk.attempt(paths.root, paths.require_real_folders)
    present: list[int | None] = [*versions(paths)]
    for version in present or [None]:
        path = paths.root if version is None else paths.manifest_path(version)
        manifest = walk.attempt(path, _manifest(paths, version))
        if manifest is not None:
            walk.version(manifest)
    for name in file_names(paths.commits, ".json"):
        receipt = walk.attempt(paths.commits / name, _receipt(paths, name))
        if receipt is not None:
            walk.receipt(receipt, paths.commits / name)
    for name in file_names(paths.failed, ".json"):
        walk.attempt(paths.failed / name, partial(find_failure, paths, name))
    return walk.report()


def _verify_version(walk: _Walk, version: int) -> VerifyReport:
    walk.attempt(walk.paths.root, walk.paths.require_real_folders)
    path = walk.paths.manifest_path(version)
    manifest = walk.attempt(path, _manifest(walk.paths, version))
    if manifest is not None:
        walk.version(manifest)
    return replace(walk.report(), garbage=())


def find_garbage(paths: IndexPaths) -> list[Location]:
    """Return files that no readable manifest or receipt names: losers' packs, cut attempts."""
    return [paths.root / name for name in verify_index(paths, full=False).garbage]


@dataclass
class _Walk:
    """State of one check: what was seen, what was wrong."""

    paths: IndexPaths
    full: bool
    seen: set[Location] = field(default_factory=set)
    packs: dict[PackInfo, Pack | None] = field(default_factory=dict)
    problems: list[FormatError] = field(default_factory=list)
    rows: int = 0

    def attempt(self, path: Location, check: Callable[[], _Result]) -> _Result | None:
        self.seen.add(path)
        try:
            return check()
        except FormatError as error:
            self.problems.append(error)
            return None

    def version(self, manifest: Manifest) -> None:
        where = self.paths.manifest_path(manifest.version)
        # gc takes receipts of units that no pack is left of; their names stay in the list.
        present = {pack.unit for pack in manifest.packs}
        for unit in filter(present.__contains__, manifest.units):
            receipt = self.attempt(where, partial(self.paths.receipt_path, unit))
            if receipt is not None:
                self.attempt(receipt, partial(regular_size, receipt))
        packs = [self.pack(info, manifest.fingerprint) for info in manifest.packs]
        path = self.paths.root / manifest.key_table.name
        table = self.attempt(path, lambda: self._table(path, manifest))
        if table is not None:
            self.attempt(path, lambda: check_locations(table, packs))
            if all(pack is not None for pack in packs):
                self.attempt(where, lambda: _check_tokens(manifest, table, packs, where))

    def _table(self, path: Location, manifest: Manifest) -> KeyTable:
        if self.full:
            refetch(path, manifest.key_table.bytes, manifest.key_table.sha256)
        return open_keytable(self.paths, manifest)

    def receipt(self, receipt: Receipt, where: Location) -> None:
        pack = self.pack(receipt.pack)
        if pack is not None:
            self.attempt(where, lambda: _check_receipt(receipt, pack, where))

    def pack(self, info: PackInfo, fingerprint: Fingerprint | None = None) -> Pack | None:
        if info not in self.packs:
            path = self.paths.packs / info.name
            self.packs[info] = self.attempt(path, lambda: self._open(path, info, fingerprint))
        return self.packs[info]

    def _open(self, path: Location, info: PackInfo, fingerprint: Fingerprint | None) -> Pack:
        if self.full:
            refetch(path, info.bytes, info.sha256)
        pack = Pack.open(path, info)
        self.rows += len(pack)
        if fingerprint is not None:
            pack.require_origin(fingerprint)
        if self.full:
            pack.verify()
        return pack

    def report(self) -> VerifyReport:
        found = {self.paths.name_of(path): _size(path) for path in self.seen}
        sizes = {name: size for name, size in found.items() if size is not None}
        garbage = tuple(name for name in _present(self.paths) if name not in sizes)
        total = sum(sizes.values())
        return VerifyReport(len(sizes), total, self.rows, tuple(self.problems), garbage)


def check_locations(table: KeyTable, packs: Sequence[Pack | None]) -> None:
    """Raise IntegrityError unless every key lies, with its anchor, in the row the table names.

    Packs that could not be opened are None and left out.
    """
    number, row = table.locations()
    order = np.argsort(number, kind="stable")
    bounds = np.searchsorted(number[order], np.arange(len(packs) + 1))
    for pack, start, end in zip(packs, bounds[:-1], bounds[1:], strict=True):
        if pack is not None:
            _check_pack(table, pack, order[start:end], row[order[start:end]])


def _check_pack(
    table: KeyTable, pack: Pack, places: NDArray[np.int64], rows: NDArray[np.uint32]
) -> None:
    if len(rows) and int(rows.max()) >= len(pack):
        raise damaged(table.path, f"rows below {len(pack)} for {pack.path.name}", int(rows.max()))
    same = (table.keys()[places] == pack.keys()[rows]).all()
    if not same or (table.anchors()[places] != pack.anchors()[rows]).any():
        raise damaged(table.path, f"keys and anchors of {pack.path.name}", "others")


def _check_tokens(
    manifest: Manifest, table: KeyTable, packs: Sequence[Pack | None], where: Location
) -> None:
    number, row = table.locations()
    counts = [pack.tokens() for pack in packs if pack is not None]
    starts = np.cumsum([0, *map(len, counts)])
    # A row outside its pack has been reported, and must not be read here.
    inside = starts[number] + row < starts[number + np.uint32(1)]
    joined = np.concatenate(counts) if counts else np.zeros(0, np.uint32)
    found = int(joined[(starts[number] + row)[inside]].sum(dtype=np.uint64))
    if inside.all() and found != manifest.counts.tokens:
        raise damaged(where, f"{found} tokens of the keys in its table", manifest.counts.tokens)


def _check_receipt(receipt: Receipt, pack: Pack, where: Location) -> None:
    if [pack.key(i).hex() for i in range(len(pack))] != sorted(receipt.keys):
        raise damaged(where, f"the keys of {pack.path.name}", "others")
    found = (receipt.build_digest, receipt.tokens)
    if found != (pack.build_digest, int(pack.tokens().sum(dtype=np.uint64))):
        raise damaged(where, f"build and tokens of {pack.path.name}", found)


def _present(paths: IndexPaths) -> list[str]:
    """Return every file of the index folder that this format could have written, sorted."""
    tables = (name for name in file_names(paths.root, ".arrow") if name.startswith("keys-"))
    packs = (paths.packs / name for name in file_names(paths.packs, ".arrow"))
    found = [*(paths.root / name for name in tables), *packs, *paths.leftovers()]
    return sorted(map(paths.name_of, found))


def _size(path: Location) -> int | None:
    """Return the bytes of a regular file, None for anything else."""
    try:
        return regular_size(path)
    except IntegrityError:
        return None


def _manifest(paths: IndexPaths, version: int | None) -> Callable[[], Manifest]:
    return lambda: read_manifest(paths, version)


def _receipt(paths: IndexPaths, name: str) -> Callable[[], Receipt]:
    return lambda: read_receipt(paths, name.removesuffix(".json"))
