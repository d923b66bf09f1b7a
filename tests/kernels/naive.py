"""DESIGN section 3 written down literally, row by row, as the truth of the reference."""

import numpy as np
import torch

from sift_index.formats import bits
from sift_index.kernels.api import MaskLayout, SpanMask, SparsePlan


def random_plan(
    layout: MaskLayout,
    segments: list[tuple[str, int]],
    seed: int = 0,
    density: float = 0.4,
    dense_la_up_to: int = 2,
) -> SparsePlan:
    """A plan of ("span" | "glue", tokens) segments with random bits."""
    generator = np.random.default_rng(seed)
    spans, at = [], 0
    for kind, tokens in segments:
        if kind == "span":
            tiles, pages = -(-tokens // 128), -(-tokens // layout.page_size)
            ca = _random(generator, layout, pages, density)
            la = _random(generator, layout, tiles * (tiles + 1) // 2, density)
            spans.append(SpanMask(at, at + tokens, ca, la if tiles > dense_la_up_to else None))
        at += tokens
    return SparsePlan(layout, at, tuple(spans))


def _random(generator: np.random.Generator, layout: MaskLayout, entries: int, density: float):
    on = generator.random((layout.layers, layout.mask_heads, entries)) < density
    top = 2**layout.levels
    values = on * generator.integers(1, top, on.shape)
    return torch.from_numpy(bits.pack(values.astype(np.uint8), layout.levels))


def naive_mask(plan: SparsePlan, layer: int) -> np.ndarray:
    """Return bool [heads, length, length]."""
    layout, length = plan.layout, plan.length
    group = layout.heads // layout.mask_heads
    owner = np.full(length, -1)
    for index, span in enumerate(plan.spans):
        owner[span.start : span.stop] = index
    ca = [
        bits.unpack(s.ca[layer].numpy(), -(-s.tokens // layout.page_size), layout.levels)
        for s in plan.spans
    ]
    la = [
        None
        if s.la is None
        else bits.unpack(s.la[layer].numpy(), s.tiles * (s.tiles + 1) // 2, layout.levels)
        for s in plan.spans
    ]
    mask = np.zeros((layout.mask_heads, length, length), dtype=bool)
    for row in range(length):
        mask[:, row, : row + 1] = _visible(plan, owner, ca, la, row)
    return mask.repeat(group, axis=0)


def _visible(plan, owner, ca, la, row) -> np.ndarray:
    """Return bool [mask_heads, row + 1]: the union of the four rules for one row."""
    layout, at, owners = plan.layout, owner[row], owner[: row + 1]
    visible = np.zeros((layout.mask_heads, row + 1), dtype=bool)
    if at < 0:
        visible[:] = True
        return visible
    span = plan.spans[at]
    r = (row - span.start) // 128
    visible[:, owners < 0] = True
    own = np.arange(span.start, row + 1)
    c = (own - span.start) // 128
    if la[at] is None:
        visible[:, own] = True
    else:
        forced = (c == r) | (layout.neighbour & (c == r - 1))
        visible[:, own] = forced | (la[at][:, r * (r + 1) // 2 + c] >= plan.level)
    for other, earlier in enumerate(plan.spans[:at]):
        pages = np.arange(earlier.tokens) // layout.page_size
        visible[:, earlier.start : earlier.stop] = ca[other][:, pages] >= plan.level
    if layout.boundary and r == 0:
        w = max(0, span.start - layout.boundary)
        if owner[w] >= 0:
            holder = plan.spans[owner[w]]
            w = holder.start + (w - holder.start) // layout.page_size * layout.page_size
        visible[:, w : span.start] = True
    return visible
