"""A prompt's density in a fraction of a millisecond: accurate enough to choose how it runs.

The exact density (`kernels.density`) looks at every key of every layer and head, which takes longer
than a prefill. Here bits are counted by byte, and page and tile borders are not looked at.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from sift_index.formats import bits
from sift_index.kernels.api import TILE, MaskLayout, SpanMask, SparsePlan


def estimated_density(plan: SparsePlan) -> float:
    """Return about the share of causal scores that a plan visits, over all layers and heads."""
    rows = plan.layout.layers * plan.layout.mask_heads
    page, boundary = plan.layout.page_size, plan.layout.boundary
    visited = glue = cursor = 0.0
    listed = 0.0  # keys of earlier spans that are marked, in the mean over layers and heads
    last = 0.0  # marked share of the span before
    for span in plan.spans:
        between, n = span.start - cursor, span.tokens
        visited += between * cursor + _triangle(between)
        glue += between
        window = min(TILE, n) * min(boundary, span.start - glue)
        visited += n * (glue + listed) + window * (1 - last) + _own_cells(span, plan, rows)
        on = _entries_on(span.ca.numpy(), plan.layout, plan.level)
        last = on / (-(-n // page) * rows)
        listed, cursor = listed + n * last, span.stop
    rest = plan.length - cursor
    visited += rest * cursor + _triangle(rest)
    return min(1.0, visited / max(_triangle(plan.length), 1))


def _triangle(tokens: float) -> float:
    return tokens * (tokens + 1) / 2


def _own_cells(span: SpanMask, plan: SparsePlan, rows: int) -> float:
    """Return the cells of a span's own triangle, in the mean over `rows` layers and heads."""
    whole = _triangle(span.tokens)
    if span.la is None:
        return whole
    tiles, short = span.tiles, span.tokens - TILE * (span.tiles - 1)
    entries = _triangle(tiles)
    on = span.la.numpy() | _forced(tiles, plan.layout)
    off = entries - _entries_on(on, plan.layout, plan.level) / rows
    # What is off lies below the diagonal, whose tiles are half as large.
    below = whole - (tiles - 1) * _triangle(TILE) - _triangle(short)
    return whole - off * below / max(entries - tiles, 1)


def _entries_on(packed: NDArray[np.uint8], layout: MaskLayout, level: int) -> int:
    """Return how many entries of packed bits reach a level."""
    return int(np.bincount(packed.reshape(-1), minlength=256) @ _on_in_byte(layout.levels, level))


@cache
def _on_in_byte(levels: int, level: int) -> NDArray[np.int64]:
    """Return int64 [256]: how many of the entries in a byte reach a level."""
    every = np.arange(256)[:, None] >> np.arange(0, 8, levels)
    on: NDArray[np.int64] = ((every & ((1 << levels) - 1)) >= level).sum(1)
    return on


@cache
def _forced(tiles: int, layout: MaskLayout) -> NDArray[np.uint8]:
    """Return uint8 [bytes]: a triangle of which only the tiles are on that always are."""
    row, column = np.tril_indices(tiles)
    near = row - column <= int(layout.neighbour)
    return bits.pack(np.where(near, (1 << layout.levels) - 1, 0).astype(np.uint8), layout.levels)
