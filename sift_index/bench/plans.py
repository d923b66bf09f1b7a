"""Prompts with random masks: speed depends on how many bits are on, hardly on which."""

from itertools import pairwise

import numpy as np
import torch

from sift_index.bench.cases import LA_DENSE_TOKENS, Case, CaseOptions
from sift_index.formats import bits
from sift_index.kernels.api import TILE, MaskLayout, SpanMask, SparsePlan


def case_layout(case: Case, options: CaseOptions) -> MaskLayout:
    """Return the layout of a case: one layer, a mask for each query head."""
    page = TILE if case.aligned else options.page_size
    return MaskLayout(layers=1, heads=options.heads, mask_heads=options.heads, page_size=page)


def random_plan(case: Case, layout: MaskLayout, seed: int = 0) -> SparsePlan:
    """Return glue, documents back to back, the last one cut to fit, and a question as glue.

    Each CA bit is on with probability `case.ca`, and each LA bit with `case.la`.
    """
    generator = np.random.default_rng(seed)
    borders = _borders(case)
    spans = [
        SpanMask(
            start,
            stop,
            _random_row(generator, layout, -(-(stop - start) // layout.page_size), case.ca),
            _random_triangle(generator, layout, stop - start, case.la),
        )
        for start, stop in pairwise(borders)
    ]
    return SparsePlan(layout, case.tokens, tuple(spans))


def _borders(case: Case) -> list[int]:
    stop = case.tokens - case.glue
    return [*range(case.glue, stop, case.document), stop]


def _random_triangle(
    generator: np.random.Generator, layout: MaskLayout, tokens: int, density: float | None
) -> torch.Tensor | None:
    if density is None or tokens <= LA_DENSE_TOKENS:
        return None
    tiles = -(-tokens // TILE)
    return _random_row(generator, layout, tiles * (tiles + 1) // 2, density)


def _random_row(
    generator: np.random.Generator, layout: MaskLayout, entries: int, density: float
) -> torch.Tensor:
    """Return packed uint8 [layers, mask_heads, bytes]."""
    on = generator.random((layout.layers, layout.mask_heads, entries), np.float32) < density
    return torch.from_numpy(bits.pack(on, layout.levels))
