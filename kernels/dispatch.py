"""The one place that decides which implementation attends, checks its arguments and says so.

A CPU takes the torch reference. A GPU takes the first that can run of `PATHS`, with one warning
where a faster one was expected. The environment variable `SIFT_ATTENTION` names one instead, which
raises where it cannot run (`triton` on a CPU needs Triton's interpreter, TRITON_INTERPRET=1).
Logger: `sift_index.kernels`, one INFO line per path and process.
"""

import logging
import os
import warnings
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Literal, overload

import torch
from torch.nn.functional import scaled_dot_product_attention

from sift_index.formats.errors import PlanError, SiftError, SiftWarning, UsageError
from sift_index.kernels import hopper_attention, library_attention, reference, varlen
from sift_index.kernels.device_plan import DevicePlan, device_plan
from sift_index.kernels.lists import Pair
from sift_index.kernels.plan import MaskLayout, SparsePlan

VARIABLE = "SIFT_ATTENTION"
AUTO, GLUON, LIBRARY, TRITON, REFERENCE = "auto", "gluon", "library", "triton", "reference"
# Fastest first: the kernel for Hopper, compaction and an attention library, the portable kernel.
PATHS = (GLUON, LIBRARY, TRITON, REFERENCE)
TRITON_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
TRITON_HEAD_DIMS = (16, 32, 64, 128)

_log = logging.getLogger("sift_index.kernels")
# What this process has said already.
_said: set[str] = set()


@dataclass(frozen=True)
class Choice:
    """Which implementation runs and why. `degraded`: a faster one was expected here."""

    path: str
    reason: str
    degraded: bool = False


@overload
def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: DevicePlan | SparsePlan,
    layer: int,
    row_start: int = 0,
    scale: float | None = None,
    return_lse: Literal[False] = False,
) -> torch.Tensor: ...
@overload
def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: DevicePlan | SparsePlan,
    layer: int,
    row_start: int = 0,
    scale: float | None = None,
    *,
    return_lse: Literal[True],
) -> tuple[torch.Tensor, torch.Tensor]: ...
def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: DevicePlan | SparsePlan,
    layer: int,
    row_start: int = 0,
    scale: float | None = None,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attend rows [row_start, row_start + R) of a prompt to the keys its plan marks.

    q: [heads, R, D]; k, v: [kv_heads, row_start + R, D], unrepeated, contiguous along D. Returns
    [heads, R, D] in q's dtype, with `return_lse` also the natural log-sum-exp, float32 [heads, R].
    A `SparsePlan` is decoded at its first use and kept until another one comes: pass a `DevicePlan`
    where prompts take turns. Raises UsageError for tensors and values that do not fit together, or
    SIFT_ATTENTION, PlanError for a plan of another model or device.
    """
    check_tensors(q, k, v)
    _check_plan(q, k, plan, layer, row_start)
    if q.shape[1] == 1 and row_start >= plan.length and not return_lse:
        # Decoding: one dense row, for which PyTorch has kernels that split the keys.
        return _dense_row(q, k, v, scale)
    choice = choose(q, k, v, plan, scale)
    announce(choice)
    rest = (layer, row_start, scale, return_lse)
    if choice.path == REFERENCE:
        out, lse = _by_reference(q, k, v, plan, *rest)
    else:
        decoded = plan if isinstance(plan, DevicePlan) else _decoded(plan, q.device)
        out, lse = implementation(choice.path).sparse_attention(q, k, v, decoded, *rest)
    return (out, lse) if return_lse else out


def _dense_row(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None
) -> torch.Tensor:
    return scaled_dot_product_attention(q[None], k[None], v[None], scale=scale, enable_gqa=True)[0]


def choose(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: DevicePlan | SparsePlan,
    scale: float | None = None,
) -> Choice:
    """Return the implementation for a call. Raises UsageError for a bad SIFT_ATTENTION."""
    asked = os.environ.get(VARIABLE, AUTO)
    if asked not in (AUTO, *PATHS):
        raise UsageError(
            f"{VARIABLE}: expected {AUTO}, {', '.join(PATHS)}, found {asked!r}; unset it to let "
            "the device decide"
        )
    if asked == REFERENCE:
        return Choice(REFERENCE, f"{VARIABLE}={REFERENCE}")
    if asked == AUTO and q.device.type == "cpu":
        return Choice(REFERENCE, "the tensors are on a CPU")
    obstacles: list[str] = []
    for path in PATHS[:-1] if asked == AUTO else (asked,):
        obstacle = _obstacle(path, q, k, v, plan, scale)
        if obstacle is None:
            reason = "; ".join([f"{q.device.type}, {q.dtype}, head_dim {q.shape[2]}", *obstacles])
            return Choice(path, reason, degraded=bool(obstacles) and _is_hopper(q.device))
        obstacles.append(f"{path} cannot run: {obstacle}")
    if asked != AUTO:
        raise UsageError(
            f"{VARIABLE}={asked}: expected a call that it can run, found that {obstacle}; unset "
            "the variable to let the device decide"
        )
    return Choice(REFERENCE, "; ".join(obstacles), degraded=True)


def _obstacle(
    path: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: DevicePlan | SparsePlan,
    scale: float | None,
) -> str | None:
    """Return why an implementation cannot run a call, or None."""
    mask_heads = plan.layout.mask_heads
    if mask_heads % k.shape[0]:
        return f"{mask_heads} mask heads are not a multiple of {k.shape[0]} KV heads"
    if path == GLUON:
        return hopper_attention.obstacle(q, k, v, q.shape[2] ** -0.5 if scale is None else scale)
    if path == LIBRARY:
        found = varlen.best(q.device, q.dtype, q.shape[2])
        return library_attention.obstacle(plan) if found.backend else found.reason
    return _triton_obstacle(q)


def _is_hopper(device: torch.device) -> bool:
    return hopper_attention.capability(device) == hopper_attention.CAPABILITY


def _triton_obstacle(q: torch.Tensor) -> str | None:
    if find_spec("triton") is None:
        return "triton is not installed (pip install 'sift-index[gpu]')"
    if q.device.type == "cpu" and not _interpreting():
        return "the tensors are on a CPU and TRITON_INTERPRET=1 is not set"
    if q.device.type not in ("cpu", "cuda"):
        return f"the device is {q.device.type}, not CUDA or ROCm"
    if q.dtype not in TRITON_DTYPES:
        return f"the dtype is {q.dtype}, not float16, bfloat16 or float32"
    if q.shape[2] not in TRITON_HEAD_DIMS:
        return f"head_dim is {q.shape[2]}, not one of {', '.join(map(str, TRITON_HEAD_DIMS))}"
    return None


def _interpreting() -> bool:
    import triton

    return bool(triton.knobs.runtime.interpret)


def announce(choice: Choice) -> None:
    """Say once per process which path runs, and once per reason why a faster one does not."""
    if choice.path not in _said:
        _said.add(choice.path)
        _log.info("sparse attention runs on the %s path: %s", choice.path, choice.reason)
    if choice.degraded and choice.reason not in _said:
        _said.add(choice.reason)
        warnings.warn(
            f"sparse attention falls back to the {choice.path} path: {choice.reason}",
            SiftWarning,
            stacklevel=3,
        )


@lru_cache(maxsize=1)
def _decoded(plan: SparsePlan, device: torch.device) -> DevicePlan:
    return device_plan(plan, device)


@lru_cache(maxsize=1)
def _moved(plan: SparsePlan, device: torch.device) -> SparsePlan:
    return plan.to(device)


def implementation(path: str) -> Any:
    """Return the module of a path, imported where it needs Triton; the reference has none.

    All have `sparse_attention`, our own kernels also `attend_to_lists` and `attend_to_work`.
    """
    if path == GLUON:
        return hopper_attention
    if path == LIBRARY:
        return library_attention
    from sift_index.kernels import triton_attention

    return triton_attention


def _by_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: DevicePlan | SparsePlan,
    layer: int,
    row_start: int,
    scale: float | None,
    with_lse: bool,
) -> Pair:
    source = _moved(plan.source if isinstance(plan, DevicePlan) else plan, q.device)
    out = reference.sparse_attention(q, k, v, source, layer, row_start, scale)
    if not with_lse:
        return out, out.new_empty(0, dtype=torch.float32)
    return out, reference.sparse_log_sum_exp(q, k, source, layer, row_start, scale)


def check_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raise UsageError unless q, k and v are of one kind and of shapes that fit together."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 3:
            raise misfit(f"{name}'s shape", "[heads, tokens, head_dim]", list(x.shape), _ONE)
        if not x.is_floating_point():
            raise misfit(f"{name}'s dtype", "a floating-point type", x.dtype, "cast it")
        if x.stride(2) != 1 and x.shape[2] > 1:
            hint = "call .contiguous() on it"
            raise misfit(f"{name}'s stride along head_dim", 1, x.stride(2), hint)
    for name, x in (("k", k), ("v", v)):
        if (x.dtype, x.device) != (q.dtype, q.device):
            expected, found = f"{q.dtype} on {q.device} like q", f"{x.dtype} on {x.device}"
            raise misfit(name, expected, found, "move or cast it")
    if v.shape != k.shape:
        raise misfit("v's shape", list(k.shape), list(v.shape), "k and v are of the same tokens")
    if k.shape[2] != q.shape[2]:
        raise misfit("k's head_dim", q.shape[2], k.shape[2], "q and k come from one layer")
    if k.shape[0] < 1 or q.shape[0] % k.shape[0]:
        expected = f"a number that divides q's {q.shape[0]} heads"
        raise misfit("k's heads", expected, k.shape[0], "pass k and v unrepeated")


def check_layer(layer: int, layout: MaskLayout) -> None:
    """Raise UsageError unless a layer is one of the layout's."""
    if not 0 <= layer < layout.layers:
        hint = "number the model's attention layers from 0"
        raise misfit("layer", f"0 to {layout.layers - 1}", layer, hint)


def _check_plan(
    q: torch.Tensor, k: torch.Tensor, plan: DevicePlan | SparsePlan, layer: int, row_start: int
) -> None:
    """Raise UsageError or PlanError unless the call is one the plan was made for."""
    layout = plan.layout
    check_layer(layer, layout)
    if row_start < 0:
        raise misfit("row_start", "0 or more", row_start, "pass the first row's position")
    if k.shape[1] != row_start + q.shape[1]:
        expected = f"{row_start + q.shape[1]} (row_start {row_start} + {q.shape[1]} rows)"
        raise misfit("k's tokens", expected, k.shape[1], "pass the keys of the prompt's start too")
    if q.shape[0] != layout.heads:
        hint = "use a plan from an index of this model"
        raise misfit("q's heads", f"the plan's {layout.heads}", q.shape[0], hint, PlanError)
    if isinstance(plan, DevicePlan) and plan.device != q.device:
        hint = f"decode it with device_plan(plan, {str(q.device)!r})"
        raise misfit("the plan's device", q.device, plan.device, hint, PlanError)


_ONE = "pass one prompt without a batch dimension"


def misfit(
    what: str,
    expected: object,
    found: object,
    hint: str,
    kind: type[SiftError] = UsageError,
) -> SiftError:
    """Return an error that says what was expected, what was found and what to do."""
    return kind(f"{what}: expected {expected}, found {found}; {hint}")
