"""Attention through compacted lists: one way to call the pair of functions that do it.

Triton and the custom operators bring their own pair; what a plan hands to them is the same.
"""

from collections.abc import Callable

import torch

from sift_index.kernels.work import Work

Pair = tuple[torch.Tensor, torch.Tensor]


def attend_through_lists(
    compact: Callable[..., Pair],
    attend_to_lists: Callable[..., Pair],
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    work: Work,
    layer: int,
    scale: float | None,
    with_lse: bool,
) -> Pair:
    """Compact one layer's listed keys and attend some rows to them and to their own.

    q: [heads, R, D]; k, v: [kv_heads, N, D], as `work` says where in them its rows and keys are.
    compact and attend_to_lists: functions as in `triton_compaction` and `triton_attention`. Returns
    [heads, R, D] and log-sum-exp, float32 [heads, R] ([0] without `with_lse`).
    """
    layout = work.layout
    k_list, v_list = compact(
        k,
        v,
        work.page_start,
        work.page_length,
        work.offsets[layer],
        work.capacity,
        layout.page_size,
    )
    return attend_to_lists(
        q,
        k,
        v,
        k_list,
        v_list,
        work.row_tiles,
        work.counts[layer],
        work.starts[layer],
        work.bits,
        dense=work.dense,
        keys=work.keys,
        layer=layer,
        levels=layout.levels,
        neighbour=layout.neighbour,
        scale=q.shape[2] ** -0.5 if scale is None else scale,
        with_lse=with_lse,
    )
