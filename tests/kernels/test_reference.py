"""The block-wise reference against a cell-by-cell mask and against dense attention."""

from itertools import product

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from sift_index.kernels import reference
from sift_index.kernels.api import MaskLayout, SparsePlan, plan_density, sparse_attention
from sift_index.kernels.plan import RowBlock, row_blocks
from tests.kernels.naive import naive_mask, random_plan

# Unaligned spans, neighbours, glue between, one-token documents, windows across short spans.
PROMPTS = {
    "unaligned": [("glue", 7), ("span", 300), ("glue", 3), ("span", 129), ("glue", 20)],
    "short spans": [("glue", 5), *[("span", n) for n in (1, 30, 2, 127, 128)], ("glue", 1)],
    "glue window": [("glue", 150), ("span", 40), ("glue", 140), ("span", 260), ("glue", 9)],
    "no query": [("glue", 2), ("span", 200), ("span", 140)],
    "glue only": [("glue", 140)],
}
LAYOUTS = {
    "page 32": MaskLayout(2, 4, 4, 32),
    "page 8, kv heads": MaskLayout(2, 4, 2, 8),
    "page 128, no boundary": MaskLayout(2, 4, 4, 128, boundary=0, neighbour=False),
    "levels 2": MaskLayout(2, 4, 4, 16, levels=2),
    "boundary 64": MaskLayout(2, 4, 4, 32, boundary=64),
    "boundary 256": MaskLayout(2, 4, 2, 64, boundary=256),
}


def qkv(length: int, heads: int = 4, kv_heads: int = 2, dim: int = 16) -> list[torch.Tensor]:
    torch.manual_seed(length)
    return [torch.randn(h, length, dim) for h in (heads, kv_heads, kv_heads)]


def masked(q, k, v, mask: np.ndarray) -> torch.Tensor:
    group = q.shape[0] // k.shape[0]
    scores = q.double() @ k.double().repeat_interleave(group, 0).transpose(-1, -2)
    scores = (scores * q.shape[-1] ** -0.5).masked_fill(~torch.from_numpy(mask), float("-inf"))
    return (scores.softmax(-1) @ v.double().repeat_interleave(group, 0)).float()


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("segments", PROMPTS.values(), ids=PROMPTS)
def test_equals_the_rules_cell_by_cell(segments, layout):
    plan = random_plan(layout, segments, seed=len(segments))
    q, k, v = qkv(plan.length)
    for layer in range(layout.layers):
        expected = masked(q, k, v, naive_mask(plan, layer))
        torch.testing.assert_close(sparse_attention(q, k, v, plan, layer), expected)


@pytest.mark.parametrize("blocks", [1, 3, 16])
def test_both_ways_to_compute_give_the_same(monkeypatch, blocks):
    """GPUs run many blocks under a mask instead of gathering keys: shown equal here, on a CPU."""
    monkeypatch.setattr(reference, "MASK_BLOCKS", blocks)
    for number, (segments, layout) in enumerate(product(PROMPTS.values(), LAYOUTS.values())):
        plan = random_plan(layout, segments, seed=number)
        q, k, v = qkv(plan.length)
        half = plan.length // 2
        gathered = [
            sparse_attention(q, k, v, plan, 0),
            sparse_attention(q[:, half:], k, v, plan, 0, half),
        ]
        with monkeypatch.context() as patch:
            patch.setattr(reference, "_by_gathering", reference._under_masks)
            under_masks = [
                sparse_attention(q, k, v, plan, 0),
                sparse_attention(q[:, half:], k, v, plan, 0, half),
            ]
        torch.testing.assert_close(under_masks, gathered)


@pytest.mark.parametrize("density", [0.0, 1.0])
def test_all_bits_off_and_on(density):
    plan = random_plan(LAYOUTS["page 32"], PROMPTS["unaligned"], density=density)
    q, k, v = qkv(plan.length)
    out = sparse_attention(q, k, v, plan, 0)
    torch.testing.assert_close(out, masked(q, k, v, naive_mask(plan, 0)))
    dense = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert torch.allclose(out, dense, atol=1e-5) is (density == 1.0)


@pytest.mark.parametrize("chunk", [1, 50, 128, 333])
def test_chunks_give_the_same_rows(chunk):
    plan = random_plan(LAYOUTS["page 32"], PROMPTS["unaligned"])
    q, k, v = qkv(plan.length)
    whole = sparse_attention(q, k, v, plan, 1)
    for start in range(0, plan.length, chunk):
        stop = min(start + chunk, plan.length)
        part = sparse_attention(q[:, start:stop], k[:, :stop], v[:, :stop], plan, 1, start)
        torch.testing.assert_close(part, whole[:, start:stop])


def test_rows_behind_the_plan_are_dense():
    plan = random_plan(LAYOUTS["page 32"], PROMPTS["no query"])
    q, k, v = qkv(plan.length + 10)
    out = sparse_attention(q[:, plan.length :], k, v, plan, 0, plan.length)
    dense = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(out, dense[:, plan.length :])


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("segments", PROMPTS.values(), ids=PROMPTS)
def test_density_counts_the_cells_of_the_mask(segments, layout):
    plan = random_plan(layout, segments, seed=3)
    density = plan_density(plan)
    masks = np.stack([naive_mask(plan, layer) for layer in range(layout.layers)])
    assert density.total.visited == masks.sum()
    assert (
        density.total.causal
        == masks[0, 0].shape[0] * (plan.length + 1) // 2 * masks[:, :, 0, 0].size
    )
    own = sum(masks[:, :, s.start : s.stop, s.start : s.stop].sum() for s in plan.spans)
    assert density.la.visited == own
    assert density.ca.visited == sum(
        masks[:, :, s.start : s.stop, e.start : e.stop].sum()
        for i, s in enumerate(plan.spans)
        for e in plan.spans[:i]
    )
    assert (
        density.ca.causal
        == sum(s.tokens * e.tokens for i, s in enumerate(plan.spans) for e in plan.spans[:i])
        * layout.heads
        * layout.layers
    )


def test_a_higher_level_visits_less():
    plan = random_plan(LAYOUTS["levels 2"], PROMPTS["short spans"], density=0.8)
    visited = [
        plan_density(SparsePlan(plan.layout, plan.length, plan.spans, level)).ca.visited
        for level in (1, 2, 3)
    ]
    assert visited[0] > visited[1] > visited[2]


def test_tiles_stay_anchored_at_the_span_when_a_chunk_cuts_it():
    plan = random_plan(LAYOUTS["page 32"], [("glue", 10), ("span", 300), ("glue", 5)])
    assert row_blocks(plan, 100, 312) == [
        RowBlock(100, 138, 0, 0),
        RowBlock(138, 266, 0, 1),
        RowBlock(266, 310, 0, 2),
        RowBlock(310, 312, None, 0),
    ]
