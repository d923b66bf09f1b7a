"""Two calls of a library and a merge against the reference, with `plain` and every real library.

`plain` shows in float32 on any machine that the entries say what the plan says; on a GPU the same
plans run through the libraries that are installed.
"""

import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_index.errors import PlanError, UsageError
from sift_index.kernels import library_attention, varlen
from sift_index.kernels.api import MaskLayout, SparsePlan, device_plan, sparse_attention
from sift_index.kernels.library_attention import obstacle
from sift_index.kernels.reference import sparse_log_sum_exp
from sift_index.kernels.varlen import ATEN, BACKENDS, FA2, FA3, PLAIN
from tests.kernels.naive import random_plan

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
attend: Any = library_attention.sparse_attention
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 2e-2}

PROMPTS = {
    "unaligned": [("glue", 7), ("span", 390), ("glue", 3), ("span", 129), ("glue", 20)],
    "short spans": [("glue", 5), *[("span", n) for n in (1, 30, 2, 127, 128)], ("glue", 1)],
    "glue window": [("glue", 150), ("span", 40), ("glue", 140), ("span", 260), ("glue", 9)],
    "no query": [("glue", 2), ("span", 200), ("span", 140)],
    "no prefix": [("span", 390), ("span", 9)],
    "one span": [("span", 140)],
    "glue only": [("glue", 140)],
    "nothing": [],
}
# Layouts and KV heads: one mask per query head or per KV head, groups of 1, 3, 4 and 8.
LAYOUTS = {
    "heads": (MaskLayout(2, 2, 2, 32), 2),
    "group of 3, kv heads": (MaskLayout(2, 3, 1, 8), 1),
    "group of 4": (MaskLayout(1, 4, 4, 128, boundary=0), 1),
    "group of 8, between": (MaskLayout(2, 16, 4, 16, levels=2, boundary=64), 2),
    "wide window": (MaskLayout(1, 2, 2, 64, boundary=256), 2),
}
LIBRARIES = [(FA3, torch.bfloat16)]
LIBRARIES += [(name, dtype) for name in (FA2, ATEN) for dtype in (torch.float16, torch.bfloat16)]
KINDS = [(PLAIN, torch.float32), (PLAIN, torch.bfloat16), *LIBRARIES]


def dense_inside(layout: MaskLayout, segments, **options) -> SparsePlan:
    """A random plan without LA bits."""
    return random_plan(layout, segments, dense_la_up_to=1 << 30, **options)


def qkv(plan: SparsePlan, kv_heads: int, dim=16, dtype=torch.float32, more=0) -> Any:
    """Token-major memory, as a model's projection leaves it: strides differ from the shape's."""
    torch.manual_seed(plan.length)
    heads = (plan.layout.heads, kv_heads, kv_heads)
    return [torch.randn(plan.length + more, h, dim).to(dtype).transpose(0, 1) for h in heads]


def strict(q, k, v, cu_q, k_start, k_used, max_q, max_k, scale, causal):
    """Attend with `plain`, sure that the tables are what `varlen.Attend` asks for."""
    rows = cu_q.diff()
    assert cu_q[0] == 0 and cu_q[-1] == len(q) and (rows > 0).all()
    assert (k_start >= 0).all() and (k_used >= 0).all() and (k_start + k_used <= len(k)).all()
    assert rows.amax() == max_q and k_used.amax() <= max_k
    assert {x.dtype for x in (cu_q, k_start, k_used)} == {torch.int32}
    assert all(x.is_contiguous() for x in (cu_q, k_start, k_used))
    return varlen.attend_plain(q, k, v, cu_q, k_start, k_used, max_q, max_k, scale, causal)


STRICT = replace(BACKENDS[PLAIN], attend=strict)


def device_for(name: str, dtype: torch.dtype, dim: int) -> torch.device:
    """Return where a backend is tested; skip where it cannot run."""
    device = torch.device("cpu") if name == PLAIN else DEVICE
    reason = BACKENDS[name].obstacle(device, dtype, dim)
    if reason is not None:
        pytest.skip(f"{name}: {reason}")
    return device


def run(q, k, v, plan: SparsePlan, layer: int, *args, name=PLAIN, **kwargs: Any):
    """Attend with a backend where it is tested; results on the CPU."""
    device = device_for(name, q.dtype, q.shape[2])
    decoded, moved = device_plan(plan, device), [x.to(device) for x in (q, k, v)]
    backend = STRICT if name == PLAIN and q.shape[1] else BACKENDS[name]
    out, lse = attend(*moved, decoded, layer, *args, backend=backend, **kwargs)
    return out.cpu(), lse.cpu()


def agree(found, q, k, v, plan: SparsePlan, layer: int, *args) -> None:
    """Compare with the reference in float32, and its log-sum-exp."""
    out, lse = found
    assert out.dtype == q.dtype and lse.dtype == torch.float32
    tolerance, (q, k, v) = TOLERANCE[q.dtype], (x.float() for x in (q, k, v))
    expected = sparse_attention(q, k, v, plan, layer, *args)
    torch.testing.assert_close(out.float(), expected, rtol=tolerance, atol=tolerance)
    expected = sparse_log_sum_exp(q, k, plan, layer, *args)
    torch.testing.assert_close(lse, expected, rtol=tolerance, atol=tolerance)


@st.composite
def cases(draw: st.DrawFn):
    """A plan, its tensors, and a chunk of rows anywhere, also behind the plan."""
    kv_heads, group = draw(st.integers(1, 2)), draw(st.sampled_from([1, 3, 4, 8]))
    layout = MaskLayout(
        layers=2,
        heads=kv_heads * group,
        mask_heads=draw(st.sampled_from([kv_heads, kv_heads * group])),
        page_size=draw(st.sampled_from([8, 16, 32, 64, 128])),
        levels=draw(st.sampled_from([1, 2])),
        boundary=draw(st.sampled_from([0, 64, 128, 256])),
    )
    glue = draw(st.sampled_from(["everywhere", "nowhere", "somewhere"]))
    segments = []
    for _ in range(draw(st.integers(0, 6))):
        if glue == "everywhere" or (glue == "somewhere" and draw(st.booleans())):
            segments.append(("glue", draw(st.integers(1, 150))))
        segments.append(("span", draw(st.one_of(st.integers(1, 40), st.integers(1, 400)))))
    if glue != "nowhere":
        segments.append(("glue", draw(st.integers(1, 50))))
    density = draw(st.sampled_from([0.0, 0.3, 1.0]))
    plan = dense_inside(layout, segments, seed=draw(st.integers(0, 99)), density=density)
    plan = replace(plan, level=draw(st.integers(1, 2**layout.levels - 1)))
    row_start = draw(st.integers(0, plan.length + 20))
    row_stop = draw(st.integers(row_start, plan.length + 150))
    q, k, v = qkv(plan, kv_heads, 8, more=150)
    return plan, q[:, row_start:row_stop], k[:, :row_stop], v[:, :row_stop], row_start


@settings(max_examples=60, deadline=None)
@given(cases())
def test_any_rows_of_any_plan(case):
    plan, *tensors, row_start = case
    found = run(*tensors, plan, 1, row_start, with_lse=True)
    agree(found, *tensors, plan, 1, row_start)


@pytest.mark.parametrize("layout, kv_heads", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("segments", PROMPTS.values(), ids=PROMPTS)
@pytest.mark.parametrize("name, dtype", KINDS, ids=str)
def test_whole_prompts(name, dtype, segments, layout, kv_heads):
    plan = dense_inside(layout, segments, seed=len(segments))
    tensors = qkv(plan, kv_heads, 64, dtype)
    layer = layout.layers - 1
    agree(run(*tensors, plan, layer, name=name, with_lse=True), *tensors, plan, layer)


@pytest.mark.parametrize("chunk", [1, 90, 128, 333])
@pytest.mark.parametrize("name, dtype", KINDS, ids=str)
def test_chunks(name, dtype, chunk):
    plan = dense_inside(LAYOUTS["heads"][0], PROMPTS["unaligned"], seed=4)
    q, k, v = qkv(plan, 2, 64, dtype, more=200)
    # One-row chunks at the places where something begins or ends, and beside them.
    edges = {edge + d for s in plan.spans for edge in (s.start, s.start + 128) for d in (-1, 0)}
    starts = range(0, plan.length + 200, chunk) if chunk > 1 else sorted(edges)
    for start in starts:
        stop = min(start + chunk, plan.length + 200)
        part = (q[:, start:stop], k[:, :stop], v[:, :stop])
        agree(run(*part, plan, 1, start, name=name, with_lse=True), *part, plan, 1, start)


@pytest.mark.parametrize("density", [0.0, 1.0])
@pytest.mark.parametrize("name, dtype", KINDS, ids=str)
def test_all_bits_off_and_on(name, dtype, density):
    plan = dense_inside(LAYOUTS["heads"][0], PROMPTS["unaligned"], density=density)
    tensors = qkv(plan, 2, 64, dtype)
    found = run(*tensors, plan, 0, name=name, with_lse=True)
    agree(found, *tensors, plan, 0)
    q, k, v = (x.float() for x in tensors)
    dense = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    close = torch.allclose(found[0].float(), dense, atol=TOLERANCE[dtype])
    assert close is (density == 1.0)


@pytest.mark.parametrize("name, dtype", KINDS, ids=str)
def test_a_scale_of_its_own_and_no_log_sum_exp(name, dtype):
    plan = dense_inside(LAYOUTS["heads"][0], PROMPTS["no query"])
    q, k, v = qkv(plan, 2, 128, dtype)
    out, lse = run(q, k, v, plan, 0, 0, 0.03, name=name)
    expected = sparse_attention(q.float(), k.float(), v.float(), plan, 0, 0, 0.03)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(out.float(), expected, rtol=tolerance, atol=tolerance)
    assert lse.shape == (0,)


@pytest.mark.parametrize("name, dtype", KINDS, ids=str)
def test_what_lies_behind_a_list_does_not_count(name, dtype, monkeypatch):
    """Memory that nothing was written to may hold NaN, which no weight of zero makes harmless."""
    real = torch.Tensor.new_empty

    def poisoned(x, *shape, **options):
        made = real(x, *shape, **options)
        return made.fill_(float("nan")) if made.is_floating_point() else made

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    plan = dense_inside(LAYOUTS["heads"][0], PROMPTS["unaligned"], density=0.2)
    tensors = qkv(plan, 2, 64, dtype)
    agree(run(*tensors, plan, 0, name=name, with_lse=True), *tensors, plan, 0)


def test_values_behind_each_list_are_finite(monkeypatch):
    plan = device_plan(dense_inside(LAYOUTS["heads"][0], PROMPTS["unaligned"]), "cpu")
    q, k, v = qkv(plan.source, 2)
    seen = []

    def recorded(q, k, v, *rest):
        seen.append(v)
        return BACKENDS[PLAIN].attend(q, k, v, *rest)

    recording = replace(BACKENDS[PLAIN], attend=recorded)
    for layer in range(2):
        attend(q, k, v, plan, layer, backend=recording)
    for layer, values in enumerate(seen[1::2]):
        lists = values.view(2, -1, 16)
        ends = plan.offsets[layer, :, plan.chunk(0, q.shape[1]).pages].tolist()
        for head, end in enumerate(ends):
            behind = lists[head, end : end + varlen.KEY_BLOCK]
            assert len(behind) == varlen.KEY_BLOCK and torch.isfinite(behind).all()
            assert (lists[head, :end] != 0).any(-1).all()


@pytest.mark.parametrize("name, dtype", KINDS, ids=str)
def test_tensors_of_any_stride(name, dtype):
    """Head-major, token-major, and parts of a joint projection and of a cache."""
    plan = dense_inside(LAYOUTS["heads"][0], PROMPTS["unaligned"])
    q, k, v = qkv(plan, 2, 64, dtype)
    joint = torch.cat((q, k, v)).transpose(0, 1).contiguous().transpose(0, 1)
    cache = torch.zeros(2, 2, 1000, 64, dtype=dtype)
    cache[0, :, : plan.length], cache[1, :, : plan.length] = k, v
    for tensors in (
        [x.contiguous() for x in (q, k, v)],
        list(joint.split(2)),
        [q, cache[0, :, : plan.length], cache[1, :, : plan.length]],
    ):
        agree(run(*tensors, plan, 0, name=name, with_lse=True), *tensors, plan, 0)


def test_many_spans_share_their_lists():
    segments = [("glue", 3), *[("span", 20), ("span", 150)] * 8]
    layout = MaskLayout(1, 4, 2, 16)
    plan = dense_inside(layout, segments)
    tensors = qkv(plan, 2)
    agree(run(*tensors, plan, 0, with_lse=True), *tensors, plan, 0)


class Shapes:
    """A backend that computes nothing and counts its calls."""

    def __init__(self) -> None:
        self.causal: list[bool] = []

    def __call__(self, q, k, v, cu_q, k_start, k_used, max_q, max_k, scale, causal):
        assert len(k_start) == len(k_used) == len(cu_q) - 1
        self.causal.append(causal)
        return torch.zeros_like(q), q.new_zeros(q.shape[1], q.shape[0], dtype=torch.float32)


def test_the_host_never_waits_for_the_device():
    """On the meta device there are no values: any `.item()` or `nonzero` would raise."""
    layout, kv_heads = LAYOUTS["group of 8, between"]
    plan = device_plan(dense_inside(layout, PROMPTS["unaligned"]), "meta")
    tensors: Any = [x.to("meta") for x in qkv(plan.source, kv_heads)]
    shapes = Shapes()
    backend = replace(BACKENDS[PLAIN], attend=shapes)
    for layer in range(2):
        out, lse = attend(*tensors, plan, layer, with_lse=True, backend=backend)
        assert out.shape == tensors[0].shape and lse.shape == out.shape[:2]
    assert shapes.causal == [True, False] * 2


@pytest.mark.parametrize(
    "rows, calls",
    {(0, 7): 1, (0, 135): 1, (0, 136): 2, (130, 135): 1, (397, 400): 1, (397, 401): 2,
     (528, 530): 2, (529, 549): 1, (540, 700): 1, (600, 700): 1, (50, 50): 1}.items(),
)  # fmt: skip
def test_rows_that_take_no_listed_key_need_one_call(rows, calls):
    """The first span has none in front of it, nor has the first tile of the second."""
    segments = [("span", 7), ("span", 390), ("glue", 3), ("span", 129), ("glue", 20)]
    start, stop = rows
    plan = device_plan(dense_inside(LAYOUTS["heads"][0], segments), "cpu")
    q, k, v = qkv(plan.source, 2, more=200)
    shapes = Shapes()
    attend(
        q[:, start:stop], k[:, :stop], v[:, :stop], plan, 0, start,
        backend=replace(BACKENDS[PLAIN], attend=shapes),
    )  # fmt: skip
    assert len(shapes.causal) == calls


def test_tables_are_made_once_for_all_layers_and_go_with_their_plan(monkeypatch):
    made, real = [], library_attention._segments

    def segments(*args):
        made.append(args)
        return real(*args)

    monkeypatch.setattr(library_attention, "_segments", segments)
    source = dense_inside(LAYOUTS["heads"][0], PROMPTS["no query"])
    q, k, v = qkv(source, 2)
    first, second = device_plan(source, "cpu"), device_plan(source, "cpu")

    def all_layers(plan, start=0):
        for layer in range(2):
            attend(q[:, start:], k, v, plan, layer, start)

    for plan in (first, second, first):
        all_layers(plan)
    assert len(made) == 2
    all_layers(first, 100)
    all_layers(first)
    assert len(made) == 4
    references = [weakref.ref(plan) for plan in (first, second)]
    del first, second, plan
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_plans_that_no_library_can_run():
    layout = MaskLayout(1, 64, 64, 32)
    plan = random_plan(layout, [("glue", 7), ("span", 100), ("span", 400)])
    reason = "span 1 is sparse in itself, which attention libraries cannot express"
    assert obstacle(plan) == obstacle(device_plan(plan, "cpu")) == reason
    q, k, v = qkv(plan, 64)
    with pytest.raises(PlanError, match=f"{reason}; use the Triton kernel or the reference"):
        attend(q, k, v, device_plan(plan, "cpu"), 0)
    many = dense_inside(layout, [("span", 1)] * 1023)
    assert obstacle(many) is None
    assert str(obstacle(dense_inside(layout, [("span", 1)] * 1024))).startswith("1024 spans for 64")
    assert obstacle(dense_inside(layout, [("glue", 1), ("span", 129)] * 342)) is not None


def test_calls_that_no_library_can_run():
    plan = device_plan(dense_inside(MaskLayout(1, 4, 2, 32), PROMPTS["no query"]), "cpu")
    q, k, v = qkv(plan.source, 4)
    with pytest.raises(UsageError, match="mask heads to be a multiple of k's 4 heads, found 2"):
        attend(q, k, v, plan, 0)
    elsewhere: Any = [x[:2].to("meta") if x is not q else x.to("meta") for x in (q, k, v)]
    with pytest.raises(UsageError, match="found none .fa3: the device is meta, not CUDA"):
        attend(*elsewhere, plan, 0)


def test_a_cpu_takes_plain_torch_by_itself():
    plan = dense_inside(LAYOUTS["heads"][0], PROMPTS["no query"])
    tensors: Any = [x.requires_grad_() for x in qkv(plan, 2)]
    found = attend(*tensors, device_plan(plan, "cpu"), 0, with_lse=True)
    agree(found, *(x.detach() for x in tensors), plan, 0)
    assert not found[0].requires_grad


@pytest.mark.parametrize("name, dtype", LIBRARIES, ids=str)
def test_a_long_prompt_on_a_gpu(name, dtype):
    """Lists of many blocks, spans of many tiles, more entries than FA3 sorts at once."""
    device_for(name, dtype, 128)
    layout = MaskLayout(1, 32, 32, 32)
    segments = [("glue", 40), *[("span", n) for n in (900, 1100, 33, 700) * 8], ("glue", 100)]
    plan = dense_inside(layout, segments, density=0.15)
    q, k, v = qkv(plan, 8, 128, dtype)
    out, lse = run(q, k, v, plan, 0, name=name, with_lse=True)
    for rows in (slice(0, 300), slice(9_000, 9_200), slice(plan.length - 300, plan.length)):
        part = (q[:, rows], k[:, : rows.stop], v[:, : rows.stop])
        agree((out[:, rows], lse[:, rows]), *part, plan, 0, rows.start)
