"""Issued tiles, counted again from the mask itself, row by row and without any plan's tables."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_index.bench.cases import Case, CaseOptions
from sift_index.bench.flex import block_mask
from sift_index.bench.plans import case_layout, random_plan
from sift_index.bench.work import causal_tiles, issued_tiles, tflops, tile_matrix
from sift_index.kernels import row_tiles as columns
from sift_index.kernels.api import MaskLayout, SparsePlan, device_plan
from sift_index.kernels.plan import RowBlock, row_blocks
from tests.kernels.naive import naive_mask
from tests.kernels.naive import random_plan as plan_of_segments


def counted(plan: SparsePlan, lines: np.ndarray) -> int:
    """Count the tiles of 128 keys that each tile of rows must visit, from its visible keys."""
    mask, total = naive_mask(plan, 0), 0
    for line in lines.tolist():
        begin, end = line[columns.BEGIN], line[columns.BEGIN] + line[columns.STOP]
        met = row_blocks(plan, begin, end)
        owns = [own_start(plan, block) for block in met]
        for head in range(plan.layout.heads):
            listed = [
                int(mask[head, block.begin : block.end, :own].any(0).sum())
                for block, own in zip(met, owns, strict=True)
            ]
            seen = np.atleast_1d(mask[head, begin:end].any(0))
            pieces = (seen[at : at + 128].any() for at in range(min(owns), end, 128))
            total += -(-max(listed) // 128) + sum(map(int, pieces))
    return total


def own_start(plan: SparsePlan, block: RowBlock) -> int:
    """The key from which the rows of a block see all that are theirs."""
    if block.span is None:
        return 0
    first = block.tile_row == 0
    return plan.window_start(block.span) if first else plan.spans[block.span].start


@st.composite
def plans(draw: st.DrawFn) -> SparsePlan:
    layout = MaskLayout(
        layers=1,
        heads=2,
        mask_heads=draw(st.sampled_from([1, 2])),
        page_size=draw(st.sampled_from([16, 32, 128])),
        boundary=draw(st.sampled_from([0, 128])),
    )
    segments = []
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            segments.append(("glue", draw(st.integers(1, 200))))
        segments.append(("span", draw(st.integers(1, 600))))
    segments.append(("glue", draw(st.integers(1, 150))))
    density = draw(st.sampled_from([0.1, 0.5, 1.0]))
    return plan_of_segments(layout, segments, draw(st.integers(0, 99)), density)


@settings(max_examples=25, deadline=None)
@given(plans())
def test_issued_tiles_are_those_the_mask_asks_for(plan):
    decoded = device_plan(plan, "cpu")
    assert issued_tiles(decoded) == counted(plan, decoded.row_tiles)


@pytest.mark.parametrize(("tokens", "expected"), [(128, 1), (129, 3), (512, 10), (65536, 131328)])
def test_dense_attention_issues_the_lower_triangle(tokens, expected):
    assert causal_tiles(tokens, 1) == expected
    assert causal_tiles(tokens, 32) == 32 * expected
    glue = SparsePlan(MaskLayout(1, 2, 2, 32), tokens, ())
    if tokens < 1000:
        assert issued_tiles(device_plan(glue, "cpu")) == 2 * expected


def test_a_rate_is_operations_over_time():
    # Dense attention of 64K tokens, 32 heads of 128: 2 * 2 * D * L^2 / 2 operations and a diagonal.
    assert tflops(causal_tiles(65536, 32), 128, 52.1) == pytest.approx(676, rel=0.003)


# --- whole tiles, for FlexAttention ------------------------------------------------------------

OPTIONS = CaseOptions(heads=4, kv_heads=2)


@pytest.mark.parametrize(("document", "density"), [(128, 0.3), (256, 0.5), (640, 0.1), (256, 1.0)])
def test_aligned_tiles_are_the_mask(document, density):
    case = Case(1152, 64, document, density, aligned=True)
    plan = random_plan(case, case_layout(case, OPTIONS))
    decoded = device_plan(plan, "cpu")
    tiles = tile_matrix(decoded)
    spread = tiles.repeat(128, axis=1).repeat(128, axis=2) & np.tri(1152, dtype=bool)
    np.testing.assert_array_equal(spread, naive_mask(plan, 0))
    assert tiles.sum() == issued_tiles(decoded)


def test_aligned_tiles_follow_local_bits():
    case = Case(1792, 64, 1536, 0.3, 0.3, aligned=True)
    plan = random_plan(case, case_layout(case, OPTIONS))
    decoded = device_plan(plan, "cpu")
    tiles = tile_matrix(decoded)
    assert tiles.sum() == issued_tiles(decoded) < causal_tiles(1792, 4)
    spread = tiles.repeat(128, axis=1).repeat(128, axis=2) & np.tri(1792, dtype=bool)
    np.testing.assert_array_equal(spread, naive_mask(plan, 0))


def test_a_block_mask_masks_the_diagonal_alone():
    generator = np.random.default_rng(0)
    tiles = np.tril(generator.random((3, 7, 7)) < 0.4) | np.eye(7, dtype=bool)
    mask = block_mask(torch.from_numpy(tiles))
    np.testing.assert_array_equal(mask.to_dense()[0].bool().numpy(), tiles)
    assert (mask.kv_num_blocks == 1).all()
    np.testing.assert_array_equal(
        mask.kv_indices[0, :, :, 0].numpy(), np.arange(7)[None].repeat(3, 0)
    )
    full, indices = mask.full_kv_num_blocks, mask.full_kv_indices
    assert full is not None and indices is not None
    for head in range(3):
        for row in range(7):
            found = indices[0, head, row, : full[0, head, row]].tolist()
            assert found == np.nonzero(tiles[head, row, :row])[0].tolist()
