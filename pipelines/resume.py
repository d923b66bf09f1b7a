"""Resuming: what versions and receipts already hold, and the units that are left."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sift_index.errors import BuildError
from sift_index.formats.fingerprint import Fingerprint, require_same_build
from sift_index.formats.keyorder import Keys, find_positions, sorted_keys
from sift_index.formats.manifest import Manifest, current_version
from sift_index.formats.meanwhile import conflict_when_replaced
from sift_index.formats.reader import IndexReader
from sift_index.formats.receipts import Receipt, read_receipts, receipt_keys
from sift_index.formats.store import IndexPaths, require_sizes
from sift_index.pipelines.catalogue import Catalogue, Mask
from sift_index.pipelines.planner import UnitPlan, cut_units


@dataclass(frozen=True)
class Held:
    """What an output folder holds of this build.

    reader: the current version, or None. receipts: committed units that no version has yet.
    """

    reader: IndexReader | None
    receipts: tuple[Receipt, ...]

    @property
    def manifest(self) -> Manifest | None:
        """The current version's manifest, or None."""
        return None if self.reader is None else self.reader.manifest  # an empty one is falsy

    @property
    def keys(self) -> Keys:
        """All keys it holds, in a version or in units that wait for one; rising, uint8 [n, 16]."""
        waiting = self._committed
        if self.reader is None:
            found = waiting
        else:
            found = np.concatenate((self.reader.keys.keys(), waiting[~self.published(waiting)]))
        return sorted_keys(found)

    def published(self, keys: Keys) -> Mask:
        """Say of keys uint8 [n, 16] which the current version holds, bool [n]."""
        if self.reader is None:
            return np.zeros(len(keys), bool)
        return self.reader.keys.positions(keys) >= 0

    def committed(self, keys: Keys) -> Mask:
        """Say of keys uint8 [n, 16] which units hold that no version has yet, bool [n]."""
        return find_positions(self._committed, keys) >= 0

    @cached_property
    def _committed(self) -> Keys:
        return sorted_keys(receipt_keys(self.receipts))


def read_held(paths: IndexPaths, fingerprint: Fingerprint) -> Held:
    """Read what is there; refuse a folder that holds another build, or a version with packs lost.

    Raises FingerprintMismatchError, BuildError, IntegrityError, CommitConflictError when another
    writer's version replaced this one meanwhile.
    """
    reader = IndexReader.open(paths.root) if current_version(paths) else None
    if reader is not None:
        require_same_build(reader.manifest.fingerprint, fingerprint)
        with conflict_when_replaced(paths, reader.manifest):
            require_sizes(paths.packs, {pack.name: pack.bytes for pack in reader.manifest.packs})
    published = frozenset() if reader is None else frozenset(reader.manifest.units)
    receipts = read_receipts(paths, without=published)
    others = {receipt.build_digest for receipt in receipts} - {fingerprint.build_digest}
    if others:
        raise BuildError(
            f"{paths.root} holds unpublished units of another build ({', '.join(sorted(others))}; "
            f"this one is {fingerprint.build_digest}): build into another folder, or finish that "
            f"build with its own command first (`sift-index status {paths.root}` shows it)"
        )
    return Held(reader, tuple(receipts))


def units_left(catalogue: Catalogue, held: Held, unit_tokens: int, build_digest: str) -> UnitPlan:
    """Cut units of what no version and no receipt holds.

    An interrupted build gets its own units back: pieces come sorted by length, so the piece that
    did not fit into a unit is not longer than any piece behind it, and leaving out whole units
    never moves a piece into another. When receipts do not match the plan (the corpus changed, or
    a unit was split), what is committed is kept all the same.
    """
    keys = catalogue.distinct_keys
    wanted = ~(held.committed(keys) | held.published(keys))
    return cut_units(catalogue, unit_tokens, build_digest, wanted)
