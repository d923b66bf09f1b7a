"""The integer tables of one prompt, made on the host from its spans' positions alone.

Glue keys are visible to every later row, so a piece of glue is a page that is always on. With that,
one list of pages per layer and head serves the whole prompt: glue and selected pages in position
order. The rows of a tile see a prefix of the list and one contiguous piece of keys that ends at
their own. Nothing here depends on bits, layers or heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sift_index.formats.errors import PlanError
from sift_index.kernels.plan import TILE, SpanMask, SparsePlan

Ints: TypeAlias = NDArray[np.int64]

# A prefix that is always empty: what the rows of glue take from the list.
EMPTY_SLOT = 0


@dataclass(frozen=True, eq=False)
class SpanTable:
    """int64 [spans]: start and stop of each span, and w of rule 4 for its first tile."""

    start: Ints
    stop: Ints
    window: Ints

    def owner(self, at: Ints) -> Ints:
        """Return the span each position falls into, -1 for glue."""
        if not len(self.start):
            return np.full(len(at), -1)
        span = np.searchsorted(self.start, at, side="right") - 1
        return np.where((span >= 0) & (at < self.stop[span]), span, -1)


@dataclass(frozen=True, eq=False)
class PageTable:
    """int64 [P], pages that cover the prompt in position order.

    start, length: keys of each page. span: the span it belongs to, -1 for a piece of glue. index:
    its number inside the span, 0 for glue. slot_page, int64 [slots]: the page each list prefix
    ends in front of. Slots: `EMPTY_SLOT`, then two per span, for its first tile and for the rest.
    """

    start: Ints
    length: Ints
    span: Ints
    index: Ints
    slot_page: Ints


@dataclass(frozen=True, eq=False)
class TileTable:
    """int64 [T], tiles of up to 128 rows that cover the prompt in position order.

    Each lies in one segment, as documents are indexed; a kernel's tiles hold rows of several where
    that fills them (`row_tiles.share_tiles`). begin, end: rows. span: the span they belong to, -1
    for glue. tile_row: row of the span's own triangle, 0 for glue. own_start: where the contiguous
    piece of keys begins. slot: which prefix of the list comes before it.
    """

    begin: Ints
    end: Ints
    span: Ints
    tile_row: Ints
    own_start: Ints
    slot: Ints

    def covering(self, row_start: int, row_stop: int) -> tuple[int, int]:
        """Return the range of tiles with a row in [row_start, row_stop)."""
        return covering(self.begin, self.end, row_start, row_stop)


def covering(
    begin: NDArray[np.integer], end: NDArray[np.integer], row_start: int, row_stop: int
) -> tuple[int, int]:
    """Return the range of tiles [begin, end), ascending, with a row in [row_start, row_stop)."""
    first = int(np.searchsorted(end, row_start, side="right"))
    stop = int(np.searchsorted(begin, row_stop, side="left"))
    return first, max(first, stop) if row_start < row_stop else first


def span_table(plan: SparsePlan) -> SpanTable:
    """Return the spans' positions with their boundary windows (`SparsePlan.window_start`)."""
    start = np.array([span.start for span in plan.spans], dtype=np.int64)
    stop = np.array([span.stop for span in plan.spans], dtype=np.int64)
    window = np.maximum(start - plan.layout.boundary, 0)
    spans = SpanTable(start, stop, window)
    holder = spans.owner(window)
    if len(start):
        into_page = (window - start[holder]) % plan.layout.page_size
        window -= np.where(holder >= 0, into_page, 0)
    return spans


def page_table(plan: SparsePlan, spans: SpanTable) -> PageTable:
    """Cut the prompt into pages: spans from their start, glue also at every window's start."""
    page_size = plan.layout.page_size
    borders = _borders(plan, spans, spans.window)
    start, stop, run = cut(borders, page_size)
    owner = spans.owner(borders[:-1])
    span = owner.take(run)
    index = np.zeros_like(start)
    if len(spans.start):
        first = np.where(owner >= 0, spans.start[owner], 0)
        index = np.where(span >= 0, (start - first.take(run)) // page_size, 0)
    limits = np.stack((spans.window, spans.start), axis=1).reshape(-1)
    slot_page = np.searchsorted(start, np.concatenate(([0], limits)))
    return PageTable(start, stop - start, span, index, slot_page)


def tile_table(plan: SparsePlan, spans: SpanTable) -> TileTable:
    """Cut the prompt's rows into tiles, anchored at each span's and each glue segment's start."""
    borders = _borders(plan, spans)
    begin, end, run = cut(borders, TILE)
    span = spans.owner(borders[:-1]).take(run)
    if not len(spans.start):
        zeros = np.zeros_like(begin)
        return TileTable(begin, end, span, zeros, zeros, zeros + EMPTY_SLOT)
    tile_row = np.where(span >= 0, (begin - spans.start[span]) // TILE, 0)
    own_start = np.where(tile_row == 0, spans.window[span], spans.start[span])
    slot = 1 + 2 * span + (tile_row > 0)
    glue = span < 0
    return TileTable(
        begin, end, span, tile_row, np.where(glue, 0, own_start), np.where(glue, EMPTY_SLOT, slot)
    )


def _borders(plan: SparsePlan, spans: SpanTable, *more: Ints) -> Ints:
    """Return where segments begin and end, ascending, and `more` positions among them.

    A window inside a span starts at one of its pages, so cutting there changes no page.
    """
    ends = np.array([0, plan.length], dtype=np.int64)
    return np.unique(np.concatenate((ends, spans.start, spans.stop, *more)))


def cut(borders: Ints, step: int) -> tuple[Ints, Ints, Ints]:
    """Cut each [border, next border) into pieces of `step`, the last one short.

    Returns starts, stops, and the number of the border in front of each piece.
    """
    pieces = -(-np.diff(borders) // step)
    run = np.repeat(np.arange(len(pieces)), pieces)
    local = np.arange(len(run)) - (np.cumsum(pieces) - pieces).take(run)
    start = borders.take(run) + local * step
    return start, np.minimum(start + step, borders.take(run + 1)), run


def check_plan(plan: SparsePlan) -> None:
    """Raise PlanError unless spans are ordered inside the prompt and hold the bits they need."""
    layout, cursor = plan.layout, 0
    if layout.mask_heads < 1 or layout.heads % layout.mask_heads:
        raise PlanError(
            f"expected heads to be a multiple of mask_heads, found {layout.heads} and "
            f"{layout.mask_heads}; use the layout of the index"
        )
    for number, span in enumerate(plan.spans):
        if not cursor <= span.start < span.stop <= plan.length:
            raise PlanError(
                f"span {number}: expected tokens within [{cursor}, {plan.length}), found "
                f"[{span.start}, {span.stop}); order the spans and keep them apart"
            )
        cursor = span.stop
        _check_bits(number, span, "CA", span.ca, -(-span.tokens // layout.page_size), plan)
        if span.la is not None:
            triangle = span.tiles * (span.tiles + 1) // 2
            _check_bits(number, span, "LA", span.la, triangle, plan)


def _check_bits(
    number: int, span: SpanMask, name: str, found: object, entries: int, plan: SparsePlan
) -> None:
    layout = plan.layout
    width = -(-entries * layout.levels // 8)
    expected = (layout.layers, layout.mask_heads, width)
    shape: Sequence[int] = getattr(found, "shape", ())
    if shape != expected:
        raise PlanError(
            f"span {number} of {span.tokens} tokens: expected {name} bits of shape "
            f"{list(expected)}, found {list(shape)}; compose the prompt from the index again"
        )
