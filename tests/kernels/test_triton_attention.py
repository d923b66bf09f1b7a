"""The Triton kernel against the reference and against the rules cell by cell.

On a machine without a GPU it runs in Triton's interpreter, which is exact for float32 and float16
(its bfloat16 products are wrong) and slow: shapes are tiny, and stay the same on a GPU.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sift_index.kernels.api import MaskLayout, SparsePlan, sparse_attention
from sift_index.kernels.device_plan import device_plan
from sift_index.kernels.reference import sparse_log_sum_exp
from tests.kernels.naive import naive_mask, random_plan

PROMPTS = {
    "unaligned": [("glue", 7), ("span", 390), ("glue", 3), ("span", 129), ("glue", 20)],
    "short spans": [("glue", 5), *[("span", n) for n in (1, 30, 2, 127, 128)], ("glue", 1)],
    "glue window": [("glue", 150), ("span", 40), ("glue", 140), ("span", 260), ("glue", 9)],
    "no query": [("glue", 2), ("span", 200), ("span", 140)],
    "no prefix": [("span", 390), ("span", 9)],
    "glue only": [("glue", 140)],
}
# Layouts of (heads, kv_heads): one mask per query head or per KV head, groups of 1, 3 and 4.
LAYOUTS = {
    "heads": (MaskLayout(2, 2, 2, 32), 2),
    "group of 3, kv heads": (MaskLayout(2, 3, 1, 8), 1),
    "group of 4": (MaskLayout(1, 4, 4, 128, boundary=0, neighbour=False), 1),
    "levels 2": (MaskLayout(2, 2, 2, 16, levels=2, boundary=64), 1),
    "wide window": (MaskLayout(1, 2, 2, 64, boundary=256), 2),
}
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def qkv(plan: SparsePlan, kv_heads: int, dim=16, dtype=torch.float32, more=0):
    """Token-major memory, as a model's projection leaves it: strides differ from the shape's."""
    torch.manual_seed(plan.length)
    heads = (plan.layout.heads, kv_heads, kv_heads)
    return [torch.randn(plan.length + more, h, dim).to(dtype).transpose(0, 1) for h in heads]


def run(device, q, k, v, plan: SparsePlan, layer: int, *args, **kwargs):
    from sift_index.kernels import triton_attention

    on_device = device_plan(plan, device)
    out, lse = triton_attention.sparse_attention(
        q.to(device), k.to(device), v.to(device), on_device, layer, *args, **kwargs
    )
    return out.cpu(), lse.cpu()


def close(found: torch.Tensor, expected: torch.Tensor, dtype=torch.float32) -> None:
    assert found.dtype == expected.dtype
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=2 * tolerance)


def cell_by_cell(q, k, v, plan: SparsePlan, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Float64 attention and log-sum-exp under the literal mask."""
    group = q.shape[0] // k.shape[0]
    keys, values = (x.double().repeat_interleave(group, 0) for x in (k, v))
    scores = q.double() @ keys.transpose(-1, -2) * q.shape[-1] ** -0.5
    scores.masked_fill_(~torch.from_numpy(naive_mask(plan, layer)), float("-inf"))
    return (scores.softmax(-1) @ values).float(), scores.logsumexp(-1).float()


@pytest.mark.parametrize("layout, kv_heads", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("segments", PROMPTS.values(), ids=PROMPTS)
def test_equals_the_rules_cell_by_cell(segments, layout, kv_heads, device):
    plan = random_plan(layout, segments, seed=len(segments))
    q, k, v = qkv(plan, kv_heads)
    layer = layout.layers - 1
    out, lse = run(device, q, k, v, plan, layer, with_lse=True)
    expected, expected_lse = cell_by_cell(q, k, v, plan, layer)
    close(out, expected)
    close(lse, expected_lse)


@pytest.mark.parametrize("name, block_n", [("heads", 32), ("levels 2", 64), ("wide window", 64)])
def test_narrower_blocks_of_keys(name, block_n, device):
    layout, kv_heads = LAYOUTS[name]
    plan = random_plan(layout, PROMPTS["unaligned"])
    q, k, v = qkv(plan, kv_heads)
    out, _ = run(device, q, k, v, plan, 0, block_n=block_n)
    close(out, sparse_attention(q, k, v, plan, 0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("dim", [16, 32, 64, 128])
def test_head_dimensions_and_types(dim, dtype, device):
    if dtype == torch.bfloat16 and device.type == "cpu":
        pytest.skip("Triton's interpreter multiplies bfloat16 wrongly")
    plan = random_plan(LAYOUTS["heads"][0], PROMPTS["unaligned"], dense_la_up_to=0)
    q, k, v = qkv(plan, 2, dim, dtype)
    out, lse = run(device, q, k, v, plan, 1, 0, 0.3, with_lse=True)
    close(out, sparse_attention(q, k, v, plan, 1, 0, 0.3), dtype)
    close(lse, sparse_log_sum_exp(q, k, plan, 1, 0, 0.3), dtype)


@pytest.mark.parametrize("chunk", [1, 90, 128, 333])
def test_chunks_give_the_same_rows(chunk, device):
    plan = random_plan(LAYOUTS["heads"][0], PROMPTS["unaligned"], seed=4)
    q, k, v = qkv(plan, 2)
    whole, lse = sparse_attention(q, k, v, plan, 1), sparse_log_sum_exp(q, k, plan, 1)
    # One-row chunks at the places where something begins or ends, and beside them.
    edges = {
        edge + d for s in plan.spans for edge in (s.start, s.start + 128, s.stop) for d in (-1, 0)
    }
    starts = range(0, plan.length, chunk) if chunk > 1 else sorted(edges)
    for start in starts:
        stop = min(start + chunk, plan.length)
        part = run(
            device, q[:, start:stop], k[:, :stop], v[:, :stop], plan, 1, start, with_lse=True
        )
        close(part[0], whole[:, start:stop])
        close(part[1], lse[:, start:stop])


@pytest.mark.parametrize("segments", [PROMPTS["no query"], PROMPTS["unaligned"], []], ids=len)
@pytest.mark.parametrize("start", [0, 340, 700])
def test_rows_behind_the_plan_are_dense(segments, start, device):
    plan = random_plan(LAYOUTS["heads"][0], segments)
    q, k, v = qkv(plan, 2, more=760 - plan.length)
    q = q[:, start:]
    out, _ = run(device, q, k, v, plan, 0, start)
    close(out, sparse_attention(q, k, v, plan, 0, start))


@pytest.mark.parametrize("density", [0.0, 1.0])
def test_all_bits_off_and_on(density, device):
    plan = random_plan(LAYOUTS["heads"][0], PROMPTS["unaligned"], density=density)
    q, k, v = qkv(plan, 2)
    out, _ = run(device, q, k, v, plan, 0)
    close(out, cell_by_cell(q, k, v, plan, 0)[0])
    dense = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )
    assert torch.allclose(out, dense, atol=1e-5) is (density == 1.0)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_levels(level, device):
    plan = random_plan(LAYOUTS["levels 2"][0], PROMPTS["unaligned"], density=0.8)
    plan = replace(plan, level=level)
    q, k, v = qkv(plan, 1)
    close(run(device, q, k, v, plan, 0)[0], sparse_attention(q, k, v, plan, 0))


def test_large_scores_do_not_overflow(device):
    plan = random_plan(LAYOUTS["heads"][0], PROMPTS["short spans"])
    q, k, v = qkv(plan, 2)
    out, lse = run(device, q * 300, k, v, plan, 0, with_lse=True)
    assert np.isfinite(out.numpy()).all()
    torch.testing.assert_close(lse, sparse_log_sum_exp(q * 300, k, plan, 0), rtol=1e-5, atol=1e-3)


def test_no_rows(device):
    plan = random_plan(LAYOUTS["heads"][0], PROMPTS["no query"])
    q, k, v = qkv(plan, 2)
    out, lse = run(device, q[:, :0], k, v, plan, 0, plan.length, with_lse=True)
    assert out.shape == (2, 0, 16) and lse.shape == (2, 0)
