"""Removing old versions and what nobody needs any more; the only code that takes files away.

A file goes when no version that is kept names it and no running build can still need it. Three
things tell: a receipt that no version has had yet proves a build's pack; a file written or used
again since the current version came may be about to be named; anything else nobody names, such as
`.tmp-*` and losers' packs, must be older than the grace.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from sift_index.formats.buildstate import state_names
from sift_index.formats.errors import FormatError
from sift_index.formats.location import Location
from sift_index.formats.manifest import Manifest, read_manifest, versions
from sift_index.formats.problems import misused
from sift_index.formats.receipts import Receipt, read_receipts
from sift_index.formats.store import IndexPaths, file_names, remove_all, storage_of

GRACE_SECONDS = 24 * 3600.0
_KEYTABLE = re.compile(r"keys-([0-9]{8})(-[0-9a-f]{16})?\.arrow\Z")
_PACK = re.compile(r".+-[0-9a-f]{16}\.arrow\Z")


@dataclass(frozen=True)
class Sweep:
    """What `gc` removed, or would remove.

    `versions` are gone, `files` (names in the index folder, manifests included) held `bytes`;
    `young` files have no use either, but may belong to a running build.
    """

    versions: tuple[int, ...]
    files: tuple[str, ...]
    bytes: int
    young: tuple[str, ...]
    kept: tuple[int, ...]


def collect_garbage(
    paths: IndexPaths, keep: int, *, grace: float = GRACE_SECONDS, dry_run: bool = False
) -> Sweep:
    """Remove versions older than the newest `keep`, and every file that only they need.

    `grace`: seconds for which a file that nobody names counts as a running build's. A manifest goes
    before what it names, so a version is whole or gone. Raises UsageError for `keep` below 1,
    IndexNotFoundError, IntegrityError when a version to keep or a receipt is damaged (then it is
    unknown what they need, and nothing is removed), BuildError when a file cannot be removed.
    """
    if keep < 1:
        raise misused("versions to keep", "at least 1", keep, "the current version always stays")
    read_manifest(paths)  # says so when there is no index
    present = versions(paths)
    kept = [read_manifest(paths, version) for version in present[-keep:]]
    plan = _Plan(paths, kept, present[:-keep], grace)
    plan.sort_out()
    doomed = [paths.manifest_path(version) for version in plan.doomed]
    found = (*doomed, *plan.receipts, *plan.rest)
    size = sum(storage_of(path).total(path) for path in found)
    if not dry_run:
        # What names goes before what is named; it may have been used again since it was sorted.
        remove_all(doomed)
        remove_all([path for path in plan.receipts if not plan.is_fresh(path)])
        # Those used again, and those that a writer put back who had read them before.
        left = {*file_names(paths.commits, ".json")} if plan.receipts else set()
        packs = {pack for path, pack in plan.receipts.items() if path.name in left}
        rest = (path for path in plan.rest if path.name not in packs)
        remove_all([path for path in rest if not plan.is_fresh(path)])
    return Sweep(
        versions=tuple(plan.doomed),
        files=_names(paths, found),
        bytes=size,
        young=_names(paths, plan.young),
        kept=tuple(manifest.version for manifest in kept),
    )


@dataclass
class _Plan:
    """Sorting files into those to remove and those too young to tell.

    `receipts` are to be removed with the packs that they name, `rest` are all other files.
    """

    paths: IndexPaths
    kept: list[Manifest]
    doomed: list[int]
    grace: float
    receipts: dict[Location, str] = field(default_factory=dict)
    rest: list[Location] = field(default_factory=list)
    young: list[Location] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._current = self.kept[-1]
        self._store = storage_of(self.paths.root)
        self._published = self._store.modified(self.paths.manifest_path(self._current.version))
        self._now = time.time()
        self._needed = {pack.name for manifest in self.kept for pack in manifest.packs}
        self._needed |= {manifest.key_table.name for manifest in self.kept}
        self._known = {name for version in self.doomed for name in self._files_of(version)}

    def sort_out(self) -> None:
        """Fill `receipts` and `rest`, what is to be removed, and `young`."""
        self._sort_receipts()
        for name in file_names(self.paths.root, ".arrow"):
            if (match := _KEYTABLE.match(name)) and name not in self._needed:
                # Who would publish a version that exists already has lost.
                late = int(match[1]) <= self._current.version
                self._judge(self.paths.root / name, late or name in self._known)
        for name in file_names(self.paths.packs, ".arrow"):
            if _PACK.match(name) and name not in self._needed:
                self._judge(self.paths.packs / name, name in self._known)
        for path in self.paths.leftovers():
            self._judge(path, False)
        # A running build writes its state again and again; young ones say what the last build did.
        states = [self.paths.state / name for name in state_names(self.paths)]
        self.rest += [path for path in states if self._is_old(path)]

    def is_fresh(self, path: Location) -> bool:
        """Say whether a file was written or used since the current version came, and lately."""
        latest = self._store.modified(path) + self._store.clock_step
        return latest > max(self._published, self._now - self.grace)

    def _sort_receipts(self) -> None:
        """Receipts of units that no version had yet prove a pack; others serve kept versions."""
        units = set(self._current.units)
        for receipt in read_receipts(self.paths):
            path = self.paths.receipt_path(receipt.unit)
            if self._serves(receipt, units, path):
                self._needed.add(receipt.pack.name)
            else:
                self.receipts[path] = receipt.pack.name
                self._known.add(receipt.pack.name)

    def _serves(self, receipt: Receipt, units: set[str], path: Location) -> bool:
        waiting = receipt.unit not in units
        return waiting or receipt.pack.name in self._needed or self.is_fresh(path)

    def _judge(self, path: Location, known: bool) -> None:
        """Remove what a removed version named, unless used lately, and what is old."""
        keep = self.is_fresh(path) if known else not self._is_old(path)
        (self.young if keep else self.rest).append(path)

    def _is_old(self, path: Location) -> bool:
        return self._store.modified(path) <= self._now - self.grace

    def _files_of(self, version: int) -> Iterator[str]:
        """Yield what a version to remove names; nothing if it is damaged: age decides then."""
        with suppress(FormatError):
            manifest = read_manifest(self.paths, version)
            yield manifest.key_table.name
            yield from (pack.name for pack in manifest.packs)


def _names(paths: IndexPaths, found: Iterable[Location]) -> tuple[str, ...]:
    return tuple(paths.name_of(path) for path in found)
