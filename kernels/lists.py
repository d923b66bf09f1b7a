"""Attention through compacted lists: one way to call the pair of functions that do it.

Triton and the custom operators bring their own pair; what a plan hands to them is the same.
"""

from collections.abc import Callable

import torch

from sift_index.kernels.device_plan import Chunk, DevicePlan

Pair = tuple[torch.Tensor, torch.Tensor]


def attend_through_lists(
    compact: Callable[..., Pair],
    attend_to_lists: Callable[..., Pair],
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: DevicePlan,
    chunk: Chunk,
    layer: int,
    scale: float | None,
    with_lse: bool,
) -> Pair:
    """Compact one layer's listed keys and attend a chunk's rows to them and to their own.

    q: [heads, R, D]; k, v: [kv_heads, row_start + R, D]. compact and attend_to_lists: functions as
    in `triton_compaction` and `triton_attention`. Returns [heads, R, D] and log-sum-exp, float32
    [heads, R] ([0] without `with_lse`).
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
    return attend_to_lists(
        q,
        k,
        v,
        k_list,
        v_list,
        chunk.order,
        plan.row_tiles,
        plan.counts[layer],
        plan.bits,
        dense=chunk.dense,
        length=plan.length,
        row_start=chunk.row_start,
        layer=layer,
        level=plan.level,
        levels=layout.levels,
        neighbour=layout.neighbour,
        scale=q.shape[2] ** -0.5 if scale is None else scale,
        with_lse=with_lse,
    )
