"""Rows that were checked before, put together again: the hot path of a lookup.

What a lookup costs is calls, attributes and cache misses. So what a pack's rows have in common is
bound once, one function does the rest, and a header is not read again: what it said is remembered.
Nothing is checked here; callers know that they may.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sift_index.formats.bits import Bytes
from sift_index.formats.blob import CHECKED_BYTES, HEADER_BYTES, Layout, mask_layout, unpacked
from sift_index.formats.masks import DocumentMasks, MaskKind, PackedMask

RowView = Callable[[int, bytes, Layout], DocumentMasks]
_MOST_LAYOUTS = 2**16 - 1
_UINT8 = np.dtype(np.uint8)  # made once: by name it would be looked up for every row
_CA = MaskKind.CA
_new, _array = object.__new__, np.ndarray


class BlobColumn(NamedTuple):
    """A column of blobs: row i lies at data[offsets[i]:offsets[i + 1]]."""

    offsets: memoryview
    data: memoryview

    def layout(self, i: int) -> Layout:
        """Return what the header of row i says."""
        start = self.offsets[i]
        return mask_layout(self.data[start : start + CHECKED_BYTES].tobytes())

    def bits(self, i: int, layout: Layout) -> Bytes:
        """Return the bits of row i, uint8 [layers, heads, bytes]; a view where they lie raw."""
        start = self.offsets[i] + HEADER_BYTES
        if layout.unpack:
            payload = self.data[start : self.offsets[i + 1]]
            return unpacked(payload, layout.unpack).reshape(layout.shape)
        return _array(layout.shape, _UINT8, self.data, start)


class RowColumns(NamedTuple):
    """The columns of an open pack; `has_la` says which rows have an LA blob."""

    anchors: memoryview
    tokens: memoryview
    has_la: bytes
    la: BlobColumn
    ca: BlobColumn


class SeenRows:
    """For each place of a key table: whether its row was used and right, and its CA layout.

    Two bytes a key; `numbers` are 0 for rows not used yet, else places in `layouts`.
    """

    def __init__(self, keys: int) -> None:
        self.numbers = memoryview(bytearray(2 * keys)).cast("H")
        self.layouts: list[Layout] = [Layout(0, (0, 0, 0), 0, 0, 0)]
        self._known: dict[Layout, int] = {}

    def add(self, place: int, layout: Layout) -> None:
        """Remember a row; beyond 65,535 different layouts rows are checked at every use."""
        number = self._known.get(layout) or len(self.layouts)
        if number <= _MOST_LAYOUTS:
            if number == len(self.layouts):
                self.layouts.append(layout)
                self._known[layout] = number
            self.numbers[place] = number


def row_view(columns: RowColumns) -> RowView:
    """Return the function from (row, its key, its CA layout) to masks, for rows used before."""
    anchors, tokens, has_la, la, ca_blobs = columns
    offsets, data = ca_blobs
    some_la = any(has_la)

    def view(i: int, key: bytes, layout: Layout) -> DocumentMasks:
        unpack, shape, entries, granule, levels = layout
        ca = _new(PackedMask)
        put_kind(ca, _CA)
        if unpack:
            put_packed(ca, ca_blobs.bits(i, layout))
        else:
            put_packed(ca, _array(shape, _UINT8, data, offsets[i] + HEADER_BYTES))
        put_entries(ca, entries)
        put_granule(ca, granule)
        put_levels(ca, levels)
        row = _new(DocumentMasks)
        put_key(row, key)
        put_anchor(row, anchors[i] or None)
        put_tokens(row, tokens[i])
        put_ca(row, ca)
        put_la(row, _la_mask(la, i) if some_la and has_la[i] else None)
        return row

    return view


def _la_mask(column: BlobColumn, i: int) -> PackedMask:
    layout = column.layout(i)
    mask = _new(PackedMask)
    values = (MaskKind.LA, column.bits(i, layout), layout.entries, layout.granule, layout.levels)
    for put, value in zip(_MASK, values, strict=True):
        put(mask, value)
    return mask


def _setters(owner: type, *names: str) -> list[Callable[[object, object], None]]:
    """Slots fill a frozen object in a third of the time that `object.__setattr__` takes."""
    return [vars(owner)[name].__set__ for name in names]


_MASK = _setters(PackedMask, "kind", "packed", "entries", "granule", "levels")
put_kind, put_packed, put_entries, put_granule, put_levels = _MASK
put_key, put_anchor, put_tokens, put_ca, put_la = _setters(
    DocumentMasks, "key", "anchor", "tokens", "ca", "la"
)
