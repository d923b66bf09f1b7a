"""The masks of one document as the format sees them: packed bits with their shape, checked."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import numpy as np

from sift_index.formats.bits import LEVELS, Bytes, packed_bytes, padding_is_zero, triangle, unpack
from sift_index.formats.errors import UsageError
from sift_index.formats.identity import KEY_BYTES
from sift_index.formats.problems import misused

TILE = 128
PAGE_SIZES = (8, 16, 32, 64, 128)
_U16, _U32 = 2**16 - 1, 2**32 - 1


class MaskKind(IntEnum):
    """LA: tiles of the document's own lower triangle. CA: pages that later spans attend to."""

    LA = 1
    CA = 2


_LA, _CA = MaskKind.LA, MaskKind.CA  # looking a member up on its class costs 0.1 us


def shape_problem(
    kind: int, layers: int, heads: int, granule: int, entries: int, levels: int
) -> tuple[str, str] | None:
    """Return (expected, found) for the first number no mask can have, or None."""
    granules = (TILE,) if kind == MaskKind.LA else PAGE_SIZES
    if kind not in (1, 2):
        return "kind 1 (LA) or 2 (CA)", f"{kind}"
    if levels not in LEVELS:
        return "levels 1 or 2", f"{levels}"
    if granule not in granules:
        return f"granule of {granules}", f"{granule}"
    if not (0 < layers <= _U16 and 0 < heads <= _U16 and 0 < entries <= _U32):
        return "1..65535 layers and heads, 1..2**32-1 entries", f"{layers}, {heads}, {entries}"
    return None


def row_entries(kind: int, entries: int) -> int:
    """Return the entries of one packed row: pages for CA, the whole triangle for LA."""
    return triangle(entries) if kind == MaskKind.LA else entries


def granules(tokens: int, granule: int) -> int:
    """Return how many granules `tokens` tokens fill; the last may be short."""
    return -(-tokens // granule)


@lru_cache(4096)  # documents of one length share a shape: its checks are paid once
def _row_bytes(kind: int, layers: int, heads: int, granule: int, entries: int, levels: int) -> int:
    problem = shape_problem(kind, layers, heads, granule, entries, levels)
    if problem:
        raise _bad_mask(kind, *problem)
    return packed_bytes(row_entries(kind, entries), levels)


def _bad_mask(kind: int, expected: str, found: str) -> UsageError:
    name = {1: "LA", 2: "CA"}.get(kind, f"kind {kind}")
    return misused(f"{name} mask", expected, found, "pack it with bits.pack in this shape")


@dataclass(frozen=True, slots=True, eq=False)
class PackedMask:
    """Bits of one mask, every (layer, head) row on its own bytes.

    Shapes: `packed` uint8 [layers, heads, packed_bytes]. `entries` is the number of pages for CA
    and of tile rows T for LA, whose row then holds T (T + 1) / 2 entries. `granule` is the tile
    (128) or page size in tokens. `levels` is bits per entry. Raises UsageError on any other shape.
    """

    kind: MaskKind
    packed: Bytes
    entries: int
    granule: int
    levels: int = 1

    def __post_init__(self) -> None:
        shape = self.packed.shape
        if self.packed.dtype != np.uint8 or len(shape) != 3:
            expected = "uint8 [layers, heads, bytes]"
            raise self._bad(expected, f"{self.packed.dtype} {list(shape)}")
        width = _row_bytes(*self.shape_key)
        if shape[2] != width:
            raise self._bad(f"{width} bytes a row", f"{shape[2]}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PackedMask):
            return NotImplemented
        return self.shape_key == other.shape_key and np.array_equal(self.packed, other.packed)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return int(self.packed.shape[0])

    @property
    def heads(self) -> int:
        """Number of heads (query heads, or KV groups when the index shares them)."""
        return int(self.packed.shape[1])

    @property
    def shape_key(self) -> tuple[int, int, int, int, int, int]:
        """(kind, layers, heads, granule, entries, levels): all but the bits."""
        layers, heads = self.packed.shape[:2]
        return (self.kind, layers, heads, self.granule, self.entries, self.levels)

    @property
    def row_entries(self) -> int:
        """Entries of one packed row."""
        return row_entries(self.kind, self.entries)

    def unpacked(self) -> Bytes:
        """Return uint8 [layers, heads, row_entries] with values below 2 ** levels."""
        return unpack(self.packed, self.row_entries, self.levels)

    def padding_is_zero(self) -> bool:
        """Say whether the unused bits at the end of every row are zero."""
        return padding_is_zero(self.packed, self.row_entries, self.levels)

    def _bad(self, expected: str, found: str) -> Exception:
        return _bad_mask(self.kind, expected, found)


@dataclass(frozen=True, slots=True)
class DocumentMasks:
    """One row of the index: who the document is and where attention to it was high.

    `key` is 16 bytes, `anchor` a uint64 other than 0 or None, `tokens` at least 1. `la` is None
    when local attention stays dense. Raises UsageError when counts and token number disagree.
    """

    key: bytes
    anchor: int | None
    tokens: int
    ca: PackedMask
    la: PackedMask | None = None

    def __post_init__(self) -> None:
        problem = document_problem(self)
        if problem:
            advice = "build masks and row from the same document"
            raise misused("document masks", problem[0], problem[1], advice)


def document_problem(row: DocumentMasks) -> tuple[str, str] | None:
    """Return (expected, found) for the first field that contradicts the others, or None."""
    if len(row.key) != KEY_BYTES:
        return f"a key of {KEY_BYTES} bytes", f"{len(row.key)}"
    if row.anchor is not None and not 0 < row.anchor < 2**64:
        return "an anchor of 1..2**64-1 or None", f"{row.anchor}"
    if not 0 < row.tokens <= _U32:
        return "1..2**32-1 tokens", f"{row.tokens}"
    return _mask_problem(row)


def _mask_problem(row: DocumentMasks) -> tuple[str, str] | None:
    ca, la = row.ca, row.la
    if ca.kind != _CA or ca.entries != granules(row.tokens, ca.granule):
        return f"CA pages for {row.tokens} tokens", f"{MaskKind(ca.kind).name} x {ca.entries}"
    if la is None:
        return None
    if la.kind != _LA or la.entries != granules(row.tokens, TILE):
        return f"LA tile rows for {row.tokens} tokens", f"{MaskKind(la.kind).name} x {la.entries}"
    if la.packed.shape[:2] != ca.packed.shape[:2]:
        return f"LA of {ca.packed.shape[:2]} layers, heads as CA", f"{la.packed.shape[:2]}"
    return None
