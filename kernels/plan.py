"""What a sparse prefill computes: spans with packed bits over one prompt, free of any index.

Every implementation (torch reference, Triton, Hopper) takes a `SparsePlan`; the rules it encodes
are DESIGN section 3. Positions are absolute token positions of the prompt; gaps are glue.
"""

from dataclasses import dataclass, field, replace

import torch

TILE = 128


@dataclass(frozen=True)
class MaskLayout:
    """How bits map to score cells; the same for every document of an index.

    `mask_heads` is the number of heads bits are stored for: all query heads, or one per KV head.
    `boundary` is the window of rule 4 in keys (0 = no such rule); `neighbour` says whether the
    tile left of the diagonal is always on.
    """

    layers: int
    heads: int
    mask_heads: int
    page_size: int
    levels: int = 1
    boundary: int = TILE
    neighbour: bool = True


@dataclass(frozen=True, eq=False)
class SpanMask:
    """One indexed document at [start, stop) of the prompt.

    ca: uint8 [layers, mask_heads, bytes], packed pages. la: the same for the lower triangle of
    tiles, or None where the document's own attention is dense.
    """

    start: int
    stop: int
    ca: torch.Tensor = field(repr=False)
    la: torch.Tensor | None = field(repr=False, default=None)

    @property
    def tokens(self) -> int:
        """Length of the span in tokens."""
        return self.stop - self.start

    @property
    def tiles(self) -> int:
        """Number of 128-row tiles, the last one possibly short."""
        return -(-self.tokens // TILE)


@dataclass(frozen=True, eq=False)
class SparsePlan:
    """A prompt of `length` tokens with its spans in position order.

    `level` picks one of the nested thresholds: an entry is on when its stored value reaches it.
    Rows at or behind `length` (decoding) are dense.
    """

    layout: MaskLayout
    length: int
    spans: tuple[SpanMask, ...]
    level: int = 1

    def to(self, device: torch.device) -> "SparsePlan":
        """Return the plan with its bits on `device`; the plan itself where they already are."""
        if all(span.ca.device == device for span in self.spans):
            return self
        moved = (
            replace(span, ca=span.ca.to(device), la=None if span.la is None else span.la.to(device))
            for span in self.spans
        )
        return replace(self, spans=tuple(moved))

    def window_start(self, index: int) -> int:
        """Return w of rule 4 for span `index`, moved back to its page's start inside a span."""
        start = self.spans[index].start
        w = max(0, start - self.layout.boundary)
        for span in self.spans[:index]:
            if span.start <= w < span.stop:
                return w - (w - span.start) % self.layout.page_size
        return w


@dataclass(frozen=True)
class RowBlock:
    """Rows [begin, end) under one rule: a piece of glue, or of tile row `tile_row` of a span."""

    begin: int
    end: int
    span: int | None = None
    tile_row: int = 0


def row_blocks(plan: SparsePlan, begin: int, end: int) -> list[RowBlock]:
    """Cut rows [begin, end) at segment borders and at tiles anchored at each span's start."""
    blocks: list[RowBlock] = []
    cursor = 0
    for index, span in enumerate(plan.spans):
        blocks += _cut(cursor, span.start, None)
        blocks += _cut(span.start, span.stop, index)
        cursor = span.stop
    blocks += _cut(cursor, max(end, cursor), None)
    clipped = (
        RowBlock(max(block.begin, begin), min(block.end, end), block.span, block.tile_row)
        for block in blocks
    )
    return [block for block in clipped if block.begin < block.end]


def _cut(start: int, stop: int, span: int | None) -> list[RowBlock]:
    return [
        RowBlock(at, min(at + TILE, stop), span, row)
        for row, at in enumerate(range(start, stop, TILE))
    ]
