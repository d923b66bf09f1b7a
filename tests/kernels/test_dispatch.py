"""Which implementation runs, what it says about it, and what it refuses."""

import logging
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch

from sift_index.errors import PlanError, SiftWarning, UsageError
from sift_index.kernels import dispatch, hopper_attention, varlen
from sift_index.kernels.api import (
    DevicePlan,
    MaskLayout,
    SparsePlan,
    attend,
    device_plan,
    sparse_attention,
    sparse_log_sum_exp,
)
from sift_index.kernels.dispatch import Choice, choose
from tests.kernels.naive import random_plan

LAYOUT = MaskLayout(2, 4, 2, 32)
SEGMENTS = [("glue", 7), ("span", 200), ("span", 30), ("glue", 9)]


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv("SIFT_ATTENTION", raising=False)
    monkeypatch.setattr(dispatch, "_said", set())
    monkeypatch.setattr(dispatch, "find_spec", lambda name: name)


@pytest.fixture
def plan() -> SparsePlan:
    return random_plan(LAYOUT, SEGMENTS)


def qkv(plan: SparsePlan, dim: int = 16) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(heads, plan.length, dim) for heads in (4, 2, 2)]


@pytest.fixture(autouse=True)
def ampere(monkeypatch):
    """A GPU of the generation before, without attention libraries, whatever is there."""
    monkeypatch.setattr(hopper_attention, "capability", lambda device: (8, 0))
    monkeypatch.setattr(varlen, "best", lambda *_: varlen.Best(None, "no library is installed"))


@pytest.fixture
def hopper(monkeypatch):
    monkeypatch.setattr(hopper_attention, "capability", lambda device: (9, 0))
    monkeypatch.setattr(hopper_attention, "gluon_obstacle", lambda: None)


class Elsewhere:
    """A tensor that only says it is on another device."""

    def __init__(self, heads: int, dtype: torch.dtype, dim: int, device: str, at: int = 0) -> None:
        self.dtype, self.shape, self.device = dtype, (heads, 10, dim), torch.device(device)
        self.at = at

    def data_ptr(self) -> int:
        return self.at

    def element_size(self) -> int:
        return self.dtype.itemsize

    def stride(self, dimension: int) -> int:
        return (10 * self.shape[2], self.shape[2], 1)[dimension]


def chosen(
    dtype=torch.bfloat16, dim=64, kv_heads=2, device="cuda", at=0, scale=None, plan=None
) -> Choice:
    q: Any = Elsewhere(4, dtype, dim, device)
    k: Any = Elsewhere(kv_heads, dtype, dim, device, at)
    return choose(q, k, k, plan or random_plan(LAYOUT, SEGMENTS), scale)


@pytest.mark.parametrize("decoded", [False, True])
def test_a_cpu_takes_the_reference(decoded, plan, caplog):
    q, k, v = qkv(plan)
    given = device_plan(plan, "cpu") if decoded else plan
    with caplog.at_level(logging.INFO, logger="sift_index.kernels"):
        for layer in range(2):
            out, lse = attend(q[:, 100:], k, v, given, layer, 100, 0.2, return_lse=True)
            assert torch.equal(out, sparse_attention(q[:, 100:], k, v, plan, layer, 100, 0.2))
            assert torch.equal(lse, sparse_log_sum_exp(q[:, 100:], k, plan, layer, 100, 0.2))
            assert torch.equal(attend(q[:, 100:], k, v, given, layer, 100, 0.2), out)
    assert [record.getMessage() for record in caplog.records] == [
        "sparse attention runs on the reference path: the tensors are on a CPU"
    ]


@pytest.mark.parametrize("decoded", [False, True])
def test_triton_can_be_asked_for(decoded, plan, caplog, monkeypatch, device):
    monkeypatch.setenv("SIFT_ATTENTION", "triton")
    q, k, v = qkv(plan)
    given: SparsePlan | DevicePlan = device_plan(plan, device) if decoded else plan
    with caplog.at_level(logging.INFO, logger="sift_index.kernels"):
        out, lse = attend(q.to(device), k.to(device), v.to(device), given, 1, return_lse=True)
    torch.testing.assert_close(out.cpu(), sparse_attention(q, k, v, plan, 1))
    torch.testing.assert_close(lse.cpu(), sparse_log_sum_exp(q, k, plan, 1))
    assert "on the triton path" in caplog.text


@pytest.mark.parametrize("asked", ["reference", "triton"])
@pytest.mark.parametrize("rows", [1, 2])
def test_decoding_is_dense_and_rows_in_front_of_it_are_not(rows, asked, plan, monkeypatch, device):
    monkeypatch.setenv("SIFT_ATTENTION", asked)
    q, k, v = (torch.randn(heads, plan.length + 1, 16, device=device) for heads in (4, 2, 2))
    last, start = q[:, -rows:], plan.length + 1 - rows
    found, source = attend(last, k, v, plan, 0, start, 0.3), plan.to(device)
    torch.testing.assert_close(found, sparse_attention(last, k, v, source, 0, start, 0.3))
    # One row of a span, the last of what there is, is as sparse as any.
    row = (q[:, 230:231], k[:, :231], v[:, :231])
    found = attend(*row, plan, 0, 230)
    torch.testing.assert_close(found, sparse_attention(*row, source, 0, 230))
    dense = torch.nn.functional.scaled_dot_product_attention(*row, enable_gqa=True)
    assert not torch.allclose(found, dense, atol=1e-3)


def test_a_gpu_takes_the_first_that_can_run(monkeypatch):
    choice = chosen()
    assert choice.path == "triton" and not choice.degraded
    assert "gluon cannot run: the GPU is sm_80, not sm_90" in choice.reason
    assert "library cannot run: no library is installed" in choice.reason
    monkeypatch.setattr(varlen, "best", lambda *_: varlen.Best(varlen.BACKENDS["fa2"], "FA 2"))
    assert chosen(plan=random_plan(LAYOUT, SEGMENTS, dense_la_up_to=9)).path == "library"
    sparse_in_itself = chosen(plan=random_plan(LAYOUT, SEGMENTS, dense_la_up_to=0))
    assert sparse_in_itself.path == "triton"
    assert "library cannot run: span 0 is sparse in itself" in sparse_in_itself.reason


def test_hopper_takes_gluon(hopper):
    assert chosen() == Choice("gluon", "cuda, torch.bfloat16, head_dim 64")


HOPPER_OBSTACLES = {
    "the dtype is torch.float32": {"dtype": torch.float32},
    "head_dim is 32, not 64 or 128": {"dim": 32},
    "the scale is -1.0, not above 0": {"scale": -1.0},
    "begins or strides at no multiple of 16 bytes": {"at": 8},
}


@pytest.mark.parametrize("message, change", HOPPER_OBSTACLES.items(), ids=HOPPER_OBSTACLES)
def test_hopper_takes_another_path_and_says_so(message, change, hopper, monkeypatch):
    choice = chosen(**change)
    assert choice.path == "triton" and choice.degraded and message in choice.reason
    monkeypatch.setenv("SIFT_ATTENTION", "gluon")
    with pytest.raises(UsageError, match="SIFT_ATTENTION=gluon: expected a call that it can run"):
        chosen(**change)


def test_an_amd_gpu_that_counts_like_hopper_is_none(hopper, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    choice = chosen()
    assert choice.path == "triton" and "the device is ROCm, not CUDA" in choice.reason


@pytest.mark.parametrize("release", ["3.5.1", "3.9.0", "4.0.0"])
def test_gluon_needs_a_release_of_triton_it_was_written_for(release, monkeypatch):
    monkeypatch.setattr("triton.__version__", release)
    hopper_attention.gluon_obstacle.cache_clear()
    try:
        found = hopper_attention.gluon_obstacle()
        assert found == f"triton is {release}, not 3.6 or later and below 3.9"
    finally:
        hopper_attention.gluon_obstacle.cache_clear()


def test_the_environment_overrides(monkeypatch):
    monkeypatch.setenv("SIFT_ATTENTION", "reference")
    assert chosen() == Choice("reference", "SIFT_ATTENTION=reference")
    monkeypatch.setenv("SIFT_ATTENTION", "fastest")
    with pytest.raises(UsageError, match="expected auto, gluon, .*reference, found 'fastest'"):
        chosen()


OBSTACLES = {
    "float64": {"dtype": torch.float64},
    "head_dim is 80, not one of 16, 32, 64, 128": {"dim": 80},
    "2 mask heads are not a multiple of 4 KV heads": {"kv_heads": 4},
    "the device is mps": {"device": "mps"},
}


@pytest.mark.parametrize("message, change", OBSTACLES.items(), ids=OBSTACLES)
def test_what_triton_cannot_run_falls_back_or_is_refused(message, change, monkeypatch):
    choice = chosen(**change)
    assert choice.path == "reference" and choice.degraded and message in choice.reason
    monkeypatch.setenv("SIFT_ATTENTION", "triton")
    with pytest.raises(UsageError, match="unset the variable") as refused:
        chosen(**change)
    assert message in str(refused.value)


def test_a_machine_without_triton_falls_back(monkeypatch):
    monkeypatch.setattr(dispatch, "find_spec", lambda name: None)
    choice = chosen()
    assert choice.degraded and "triton is not installed" in choice.reason


def test_triton_on_a_cpu_needs_the_interpreter(monkeypatch):
    monkeypatch.setenv("SIFT_ATTENTION", "triton")
    monkeypatch.setattr(dispatch, "_interpreting", lambda: False)
    with pytest.raises(UsageError, match="TRITON_INTERPRET=1 is not set"):
        chosen(device="cpu")


def test_falling_back_warns_once_per_reason(plan, monkeypatch):
    q, k, v = qkv(plan)
    reasons = iter(["one", "one", "two"])
    monkeypatch.setattr(
        dispatch, "choose", lambda *_: Choice("reference", next(reasons), degraded=True)
    )
    with pytest.warns(SiftWarning, match="reference path: one") as found:
        attend(q, k, v, plan, 0)
        attend(q, k, v, plan, 0)
    assert len(found) == 1 and found[0].filename == __file__
    with pytest.warns(SiftWarning, match="two"):
        attend(q, k, v, plan, 0)


def test_a_cpu_does_not_warn(plan):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        q, k, v = qkv(plan)
        attend(q, k, v, plan, 0)


def bad_calls():
    plan = random_plan(LAYOUT, SEGMENTS)
    q, k, v = qkv(plan)
    half, n = plan.length // 2, plan.length
    good = {"q": q, "k": k, "v": v, "plan": plan, "layer": 0, "row_start": 0}
    return good, {
        r"q's shape: expected \[heads, tokens, head_dim\], found \[1, 4": {"q": q[None]},
        r"k's dtype: expected a floating-point type, found torch.int64": {"k": k.long()},
        r"v: expected torch.float32 on cpu like q, found torch.float16": {"v": v.half()},
        r"k: expected torch.float32 on cpu like q, found torch.float32 on meta": {
            "k": k.to("meta")
        },
        r"q's stride along head_dim: expected 1, found 246": {"q": q.mT.contiguous().mT},
        rf"v's shape: expected \[2, {n}, 16\], found \[2, {half}, 16\]": {"v": v[:, :half]},
        r"k's head_dim: expected 16, found 8": {"k": k[..., :8], "v": v[..., :8]},
        r"k's heads: expected a number that divides q's 4 heads, found 3": {
            "k": k.repeat(2, 1, 1)[:3],
            "v": v.repeat(2, 1, 1)[:3],
        },
        r"layer: expected 0 to 1, found 2": {"layer": 2},
        r"layer: expected 0 to 1, found -1": {"layer": -1},
        r"row_start: expected 0 or more, found -3": {"row_start": -3},
        rf"k's tokens: expected {n + 5} \(row_start 5 \+ {n} rows\), found {n}": {"row_start": 5},
    }


@pytest.mark.parametrize("message", bad_calls()[1])
def test_arguments_that_do_not_fit_together(message):
    good, bad = bad_calls()
    attend(**good)
    with pytest.raises(UsageError, match=message):
        attend(**{**good, **bad[message]})


def test_a_plan_of_another_model_or_device(plan):
    q, k, v = qkv(plan)
    other = replace(plan, layout=replace(LAYOUT, heads=8))
    with pytest.raises(PlanError, match="q's heads: expected the plan's 8, found 4"):
        attend(q, k, v, other, 0)
    with pytest.raises(PlanError, match=r"decode it with device_plan\(plan, 'cpu'\)"):
        attend(q, k, v, device_plan(plan, "meta"), 0)


def test_interleaved_plans_do_not_mix(plan, monkeypatch, device):
    monkeypatch.setenv("SIFT_ATTENTION", "triton")
    other = random_plan(LAYOUT, SEGMENTS, seed=9)
    q, k, v = (x.to(device) for x in qkv(plan))
    for some in (plan, other, plan):
        expected = sparse_attention(q, k, v, some.to(device), 0)
        torch.testing.assert_close(attend(q, k, v, some, 0), expected)
