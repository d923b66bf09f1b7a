"""PyTorch operators `sift::compact` and `sift::sparse_attention`, for compiled models.

A compiled graph sees two opaque operators with known output shapes, so nothing breaks it. The
integers of a chunk are worked out before the graph (`DevicePlan.chunk`); inside it are only tensors
and those integers. On a GPU the operators run in Triton, elsewhere in plain torch.
"""

import torch

from sift_index.kernels import compaction, listed
from sift_index.kernels.device_plan import Chunk, DevicePlan

Pair = tuple[torch.Tensor, torch.Tensor]


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
def _(
    k: torch.Tensor,
    v: torch.Tensor,
    page_start: torch.Tensor,
    page_length: torch.Tensor,
    offsets: torch.Tensor,
    capacity: int,
    page_size: int,
) -> Pair:
    from sift_index.kernels import triton_compaction

    return triton_compaction.compact(k, v, page_start, page_length, offsets, capacity, page_size)


@compact.register_fake
def _(
    k: torch.Tensor,
    v: torch.Tensor,
    page_start: torch.Tensor,
    page_length: torch.Tensor,
    offsets: torch.Tensor,
    capacity: int,
    page_size: int,
) -> Pair:
    shape = (offsets.shape[0], capacity, k.shape[2])
    return k.new_empty(shape), v.new_empty(shape)


@torch.library.custom_op("sift::sparse_attention", mutates_args=())
def attend_to_lists(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_list: torch.Tensor,
    v_list: torch.Tensor,
    row_tiles: torch.Tensor,
    counts: torch.Tensor,
    bits: torch.Tensor,
    *,
    first_tile: int,
    tiles: int,
    length: int,
    row_start: int,
    layer: int,
    level: int,
    levels: int,
    neighbour: bool,
    scale: float,
    with_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend to compacted lists and to the rows' own keys (`triton_attention.attend_to_lists`).

    Returns [heads, R, D] and log-sum-exp, float32 [heads, R] ([0] without `with_lse`).
    """
    return listed.attend_to_lists(
        q,
        k,
        v,
        k_list,
        v_list,
        row_tiles,
        counts,
        bits,
        first_tile=first_tile,
        tiles=tiles,
        length=length,
        row_start=row_start,
        layer=layer,
        level=level,
        levels=levels,
        neighbour=neighbour,
        scale=scale,
        with_lse=with_lse,
    )


@attend_to_lists.register_kernel("cuda")
def _(*tensors: torch.Tensor, **values: int | float | bool) -> Pair:
    from sift_index.kernels import triton_attention

    return triton_attention.attend_to_lists(*tensors, **values)  # type: ignore[arg-type]


@attend_to_lists.register_fake
def _(q: torch.Tensor, *tensors: torch.Tensor, with_lse: bool, **values: int | float) -> Pair:
    lse = q.new_empty(q.shape[:2] if with_lse else (0,), dtype=torch.float32)
    return q.new_empty(q.shape), lse


def sparse_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: DevicePlan,
    chunk: Chunk,
    layer: int,
    scale: float | None = None,
    with_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend as `dispatch.attend` does, traceable by torch.compile; nothing is checked.

    q: [heads, R, D]; k, v: [kv_heads, row_start + R, D]; chunk: `plan.chunk(row_start, row_start +
    R)`, made once for all layers. Returns [heads, R, D] and log-sum-exp, float32 [heads, R] ([0]
    without `with_lse`).
    """
    layout = plan.layout
    k_list, v_list = compact(
        k[:, : chunk.list_stop],
        v[:, : chunk.list_stop],
        plan.page_start[: chunk.pages],
        plan.page_length[: chunk.pages],
        plan.offsets[layer, :, : chunk.pages + 1],
        chunk.list_stop,
        layout.page_size,
    )
    out: Pair = attend_to_lists(
        q,
        k,
        v,
        k_list,
        v_list,
        plan.row_tiles,
        plan.counts[layer],
        plan.bits,
        first_tile=chunk.first_tile,
        tiles=chunk.tiles,
        length=plan.length,
        row_start=chunk.row_start,
        layer=layer,
        level=plan.level,
        levels=layout.levels,
        neighbour=layout.neighbour,
        scale=q.shape[2] ** -0.5 if scale is None else scale,
        with_lse=with_lse,
    )
    return out
