"""Sparse-prefill attention on Hopper: launches `hopper_kernel`, and says where it cannot run.

Takes the same lists and tables as the Triton kernel; `reference` is the truth of both. Importing
this module needs no Triton.
"""

import math
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

import torch

from sift_index.kernels.device_plan import DevicePlan
from sift_index.kernels.lists import attend_through_lists
from sift_index.kernels.plan import TILE
from sift_index.kernels.work import Work

CAPABILITY = (9, 0)
DTYPES = (torch.float16, torch.bfloat16)
# Blocks of K and V that shared memory holds at once, by head_dim: 2 or 4 (`hopper_blocks`).
STAGES = {64: 4, 128: 2}
# Gluon is experimental: these releases have the names and arguments that the kernel uses.
TRITON_RELEASES = ((3, 6), (3, 9))
# Whether the warpgroups take turns at the tensor cores; with head_dim 64 it gains nothing.
TURNS = {64: False, 128: True}
# Whether masked blocks have a loop of their own, or a branch in the only one.
APART = {64: False, 128: True}
ALIGNMENT = 16  # bytes, of addresses and strides that the tensor memory accelerator takes


def obstacle(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> str | None:
    """Return why the kernel cannot run this call, or None."""
    if q.device.type != "cuda" or torch.version.hip is not None:
        return f"the device is {'ROCm' if torch.version.hip else q.device.type}, not CUDA"
    if (found := capability(q.device)) != CAPABILITY:
        return f"the GPU is sm_{found[0]}{found[1]}, not sm_90"
    if q.dtype not in DTYPES:
        return f"the dtype is {q.dtype}, not float16 or bfloat16"
    if q.shape[2] not in STAGES:
        return f"head_dim is {q.shape[2]}, not 64 or 128"
    if scale <= 0:
        return f"the scale is {scale}, not above 0"
    if not all(map(_aligned, (q, k, v))):
        return f"q, k or v begins or strides at no multiple of {ALIGNMENT} bytes"
    return gluon_obstacle()


@lru_cache(maxsize=16)
def capability(device: torch.device) -> tuple[int, int]:
    """Return a CUDA device's generation, (9, 0) for Hopper."""
    return torch.cuda.get_device_capability(device)


@lru_cache(maxsize=1)
def gluon_obstacle() -> str | None:
    """Return why the installed Triton cannot compile the kernel, or None."""
    least, stop = TRITON_RELEASES
    try:
        found = str(import_module("triton").__version__)
    except ImportError:
        return "triton is not installed (pip install 'sift-index[gpu]')"
    if not least <= tuple(int(part) for part in found.split(".")[:2]) < stop:
        return f"triton is {found}, not {_release(least)} or later and below {_release(stop)}"
    return None


def sparse_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: DevicePlan,
    layer: int,
    row_start: int = 0,
    scale: float | None = None,
    with_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend as `triton_attention.sparse_attention` does, with the same arguments and results.

    float16 or bfloat16, head_dim 64 or 128, sm_90: `obstacle` must have found none.
    """
    work = plan.chunk(row_start, row_start + q.shape[1]).work
    return attend_to_work(q, k, v, work, layer, scale, with_lse)


def attend_to_work(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    work: Work,
    layer: int,
    scale: float | None = None,
    with_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend as `triton_attention.attend_to_work` does, with the same arguments and results.

    All of k and v must be finite: up to 127 keys on either side of a prompt's own are multiplied by
    a weight of zero.
    """
    from sift_index.kernels import triton_compaction

    pair = (triton_compaction.compact, attend_to_lists)
    return attend_through_lists(*pair, q, k, v, work, layer, scale, with_lse)


def attend_to_lists(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_list: torch.Tensor,
    v_list: torch.Tensor,
    row_tiles: torch.Tensor,
    counts: torch.Tensor,
    starts: torch.Tensor,
    bits: torch.Tensor,
    *,
    dense: int,
    keys: int,
    layer: int,
    levels: int,
    neighbour: bool,
    scale: float,
    with_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do what `triton_attention.attend_to_lists` does.

    Up to 127 rows behind a head's list must be finite, as `triton_compaction.compact` leaves them.
    """
    from sift_index.kernels.hopper_kernel import attend_tiles

    heads, rows, dim = q.shape
    mask_heads, slots = counts.shape
    out = q.new_empty(rows, heads, dim).transpose(0, 1)  # as projections take it
    lse = q.new_empty((heads, rows) if with_lse else (0,), dtype=torch.float32)
    tiles = row_tiles.shape[0]
    if not tiles:
        return out, lse
    if not k_list.shape[1]:
        k_list, v_list = k, v  # never read: no list has a key
    # Which item the next free program takes.
    taken = torch.zeros(1, dtype=torch.int32, device=q.device)
    described = partial(_descriptor, rows=TILE)
    attend_tiles[(min(_multiprocessors(q.device), tiles * heads),)](
        _descriptor(q, TILE // 2),
        *map(described, (k, v, k_list, v_list)),
        out,
        lse,
        taken,
        row_tiles,
        counts,
        starts,
        bits,
        tiles,
        dense,
        keys,
        rows,
        layer * mask_heads,
        slots,
        levels,
        int(neighbour),
        heads,
        heads // k.shape[0],
        heads // mask_heads,
        scale * math.log2(math.e),
        WITH_LSE=with_lse,
        STAGES=STAGES[dim],
        TURNS=TURNS[dim],
        APART=APART[dim],
        D=dim,
        num_warps=4,
    )
    return out, lse


def _descriptor(x: torch.Tensor, rows: int) -> Any:
    """Describe x [heads, N, D] to the tensor memory accelerator, in blocks of `rows` of one head.

    Rows outside [0, N) read as zeros.
    """
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    heads, tokens, dim = x.shape
    strides = [_stride(x, 0), _stride(x, 1), 1]
    block = [1, rows, dim]
    return TensorDescriptor(x, [heads, tokens, dim], strides, block, _layout(rows, dim, x.dtype))


@lru_cache(maxsize=16)
def _layout(rows: int, dim: int, dtype: torch.dtype) -> Any:
    from triton.experimental.gluon import language as gl

    kind = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}[dtype]
    return gl.NVMMASharedLayout.get_default_for([1, rows, dim], kind)


@lru_cache(maxsize=16)
def _multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _aligned(x: torch.Tensor) -> bool:
    parts = (x.data_ptr(), *(_stride(x, i) * x.element_size() for i in (0, 1)))
    return not any(part % ALIGNMENT for part in parts)


def _stride(x: torch.Tensor, dimension: int) -> int:
    """Return a stride in elements; that of a dimension of one entry means nothing."""
    return x.stride(dimension) if x.shape[dimension] > 1 else x.shape[2]


def _release(parts: tuple[int, int]) -> str:
    return f"{parts[0]}.{parts[1]}"
