"""PyTorch operators `sift::compact` and `sift::sparse_attention`, for compiled models.

A compiled graph sees two opaque operators with known output shapes, so nothing breaks it. The
tables of a call are made before the graph (`DevicePlan.chunk`, `plan_batch`); inside it are only
tensors and a few integers. On a GPU the operators run in Gluon or Triton, elsewhere in plain torch.
"""

from typing import Any

import torch

from sift_index.kernels import compaction, hopper_attention, listed
from sift_index.kernels.lists import Pair, attend_through_lists
from sift_index.kernels.work import Work


@torch.library.custom_op("sift::compact", mutates_args=())
def compact(
    k: torch.Tensor,
    v: torch.Tensor,
    page_start: torch.Tensor,
    page_length: torch.Tensor,
    offsets: torch.Tensor,
    capacity: int,
    page_size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the listed rows of k and v, [mask_heads, capacity, D] (`compaction.compact`).

    `page_size`: the longest page.
    """
    return compaction.compact(k, v, page_start, page_length, offsets, capacity)


@compact.register_kernel("cuda")
def _(*arguments: Any) -> Pair:
    from sift_index.kernels import triton_compaction

    return triton_compaction.compact(*arguments)


@compact.register_fake
def _(k: torch.Tensor, v: torch.Tensor, *pages: Any) -> Pair:
    _, _, offsets, capacity, _ = pages
    shape = (offsets.shape[0], capacity, k.shape[2])
    return k.new_empty(shape), v.new_empty(shape)


# The plain torch form is the operator: Gluon or Triton takes its place on a GPU.
attend_to_lists = torch.library.custom_op("sift::sparse_attention", mutates_args=())(
    listed.attend_to_lists
)


@attend_to_lists.register_kernel("cuda")
def _(*tensors: torch.Tensor, **values: Any) -> Pair:
    from sift_index.kernels import triton_attention

    q, k, v, *_ = tensors
    on_hopper = hopper_attention.obstacle(q, k, v, values["scale"]) is None
    if on_hopper:
        return hopper_attention.attend_to_lists(*tensors, **values)
    found: Pair = triton_attention.attend_to_lists(*tensors, **values)
    return found


@attend_to_lists.register_fake
def _(q: torch.Tensor, *tensors: torch.Tensor, with_lse: bool, **values: int | float) -> Pair:
    lse = q.new_empty(q.shape[:2] if with_lse else (0,), dtype=torch.float32)
    heads, rows, dim = q.shape
    return q.new_empty(rows, heads, dim).transpose(0, 1), lse


def sparse_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    work: Work,
    layer: int,
    scale: float | None = None,
    with_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend as `dispatch.attend` or `attend_batch` does, traceable by torch.compile; no checks.

    q, k, v: as there. work: of `plan.chunk(row_start, row_start + R)` for one prompt, of
    `plan_batch` for several, made once for all layers. Returns [heads, R, D] and log-sum-exp,
    float32 [heads, R] ([0] without `with_lse`).
    """
    pair = (compact, attend_to_lists)
    return attend_through_lists(*pair, q, k, v, work, layer, scale, with_lse)
