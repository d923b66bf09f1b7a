"""The kernels on a Hopper GPU: as exact as dense FlashAttention-3 is, whatever the layout."""

import pytest
import torch

from sift_index.kernels import hopper_attention, reference
from sift_index.kernels.api import MaskLayout, SparsePlan, device_plan
from tests.gpu.layouts import random_case
from tests.kernels.naive import random_plan

DTYPES = {torch.bfloat16: 8e-3, torch.float16: 1e-3}
ALLOWED = 1.2  # times the error of dense FlashAttention-3


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Outputs hold NaN until they are written."""
    empty = torch.Tensor.new_empty

    def filled(x: torch.Tensor, *shape: int, **options) -> torch.Tensor:
        made = empty(x, *shape, **options)
        return made.fill_(float("nan")) if made.is_floating_point() else made

    monkeypatch.setattr(torch.Tensor, "new_empty", filled)


def qkv(plan: SparsePlan, kv_heads: int, dim: int, dtype=torch.bfloat16, seed=0, layout="tokens"):
    """Random data; token-major memory as projections leave it, or head-major as caches do."""
    generator = torch.Generator("cuda").manual_seed(seed)
    made = []
    for heads in (plan.layout.heads, kv_heads, kv_heads):
        shape = (plan.length, heads, dim) if layout == "tokens" else (heads, plan.length, dim)
        x = torch.randn(shape, generator=generator, device="cuda").to(dtype)
        made.append(x.transpose(0, 1) if layout == "tokens" else x)
    return made


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm().clamp(min=1e-30))


def dense_error(q, k, v) -> float:
    """Return the error of dense FlashAttention-3 on the same data, of cuDNN where it is absent."""
    group = q.shape[0] // k.shape[0]
    # Head by head: what is exact in float32 holds all scores.
    exact = [
        (q[h, None].float(), k[h // group, None].float(), v[h // group, None].float())
        for h in range(q.shape[0])
    ]
    attend = torch.nn.functional.scaled_dot_product_attention
    expected = torch.cat([attend(*of_head, is_causal=True) for of_head in exact])
    try:
        import fa3_fwd_interface
    except ImportError:
        found = attend(q[None], k[None], v[None], is_causal=True, enable_gqa=True)[0]
        return error(found, expected)
    tokens_first = [x.transpose(0, 1).contiguous()[None] for x in (q, k, v)]
    found = fa3_fwd_interface.flash_attn_func(*tokens_first, causal=True)
    found = found[0] if isinstance(found, tuple) else found
    return error(found[0].transpose(0, 1), expected)


def by_chunks(q, k, v, plan, cuts, with_lse=True):
    on_device = device_plan(plan, "cuda")
    parts = [
        hopper_attention.sparse_attention(
            q[:, a:b], k[:, :b], v[:, :b], on_device, plan.layout.layers - 1, a, with_lse=with_lse
        )
        for a, b in zip(cuts, cuts[1:], strict=False)
    ]
    return torch.cat([out for out, _ in parts], 1), torch.cat([lse for _, lse in parts], 1)


@pytest.mark.parametrize("seed", range(200))
def test_as_exact_as_dense_attention(seed):
    case = random_case(seed)
    dtype = torch.bfloat16 if seed % 4 else torch.float16
    layout = "tokens" if seed % 2 else "heads"
    q, k, v = qkv(case.plan, case.kv_heads, case.dim, dtype, seed, layout)
    out, lse = by_chunks(q, k, v, case.plan, case.cuts)
    assert torch.isfinite(out).all() and torch.isfinite(lse).all()
    plan = case.plan.to(q.device)
    layer = plan.layout.layers - 1
    expected = reference.sparse_attention(q.float(), k.float(), v.float(), plan, layer)
    allowed = ALLOWED * dense_error(q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert error(out, expected) <= allowed
    exact = reference.sparse_log_sum_exp(q.float(), k.float(), plan, layer)
    torch.testing.assert_close(lse, exact, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [64, 128])
def test_same_inputs_give_the_same_bits(dim, dtype):
    plan = random_plan(MaskLayout(1, 8, 8, 32), [("glue", 70), ("span", 3000), ("span", 800)])
    q, k, v = qkv(plan, 2, dim, dtype)
    first = by_chunks(q, k, v, plan, (0, 1000, plan.length))
    for _ in range(5):
        again = by_chunks(q, k, v, plan, (0, 1000, plan.length))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("loud", [1.0, 12.0])
def test_scores_may_outgrow_those_of_the_diagonal(loud, dim, dtype):
    """The reference that weights are taken from moves; every fourth key is `loud` times as long."""
    kinds = [("span", 1500), ("glue", 30), ("span", 100), ("span", 90), ("span", 700)]
    plan = random_plan(MaskLayout(1, 8, 8, 32), kinds)
    q, k, v = qkv(plan, 2, dim, dtype)
    k[:, ::4] *= loud
    out, lse = by_chunks(q, k, v, plan, (0, 1000, plan.length))
    on_device = plan.to(q.device)
    expected = reference.sparse_attention(q.float(), k.float(), v.float(), on_device, 0)
    assert error(out, expected) < DTYPES[dtype]
    exact = reference.sparse_log_sum_exp(q.float(), k.float(), on_device, 0)
    torch.testing.assert_close(lse, exact, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("start", [0, 340, 700])
def test_rows_behind_the_plan_are_dense(start):
    plan = random_plan(MaskLayout(1, 4, 4, 32), [("glue", 9), ("span", 500)])
    q, k, v = (torch.randn(h, 900, 128, device="cuda", dtype=torch.bfloat16) for h in (4, 2, 2))
    on_device = device_plan(plan, "cuda")
    out, _ = hopper_attention.sparse_attention(q[:, start:], k, v, on_device, 0, start)
    exact = (q[:, start:].float(), k.float(), v.float(), plan.to(q.device), 0, start)
    expected = reference.sparse_attention(*exact)
    assert error(out, expected) < DTYPES[torch.bfloat16]


def test_keys_a_cache_has_room_for_are_not_read():
    """A static cache is longer than the prompt, and holds anything behind it."""
    plan = random_plan(MaskLayout(1, 4, 4, 32), [("glue", 9), ("span", 500), ("glue", 20)])
    cache = torch.full((2, 2, 1024, 128), float("nan"), device="cuda", dtype=torch.bfloat16)
    q = torch.randn(4, plan.length, 128, device="cuda", dtype=torch.bfloat16)
    cache[:, :, : plan.length] = torch.randn_like(cache[:, :, : plan.length])
    k, v = cache[:, :, : plan.length]
    out, _ = hopper_attention.sparse_attention(q, k, v, device_plan(plan, "cuda"), 0)
    expected = reference.sparse_attention(q.float(), k.float(), v.float(), plan.to(q.device), 0)
    assert error(out, expected) < DTYPES[torch.bfloat16]
