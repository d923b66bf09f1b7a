"""Attention of several prompts in one call, each under its plan; `dispatch` decides who computes.

Kernels of this project run a batch in one launch: short prompts fill a GPU together. Attention
libraries and the reference, which know one prompt at a time, take its prompts one after the other,
as does decoding, for which PyTorch has kernels that split the keys.
"""

from typing import Literal, overload

import torch

from sift_index.formats.errors import PlanError
from sift_index.kernels.dispatch import (
    GLUON,
    TRITON,
    announce,
    attend,
    check_layer,
    check_tensors,
    choose,
    implementation,
    misfit,
)
from sift_index.kernels.lists import Pair
from sift_index.kernels.plan_batch import PlanBatch


@overload
def attend_batch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    batch: PlanBatch,
    layer: int,
    scale: float | None = None,
    return_lse: Literal[False] = False,
) -> torch.Tensor: ...
@overload
def attend_batch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    batch: PlanBatch,
    layer: int,
    scale: float | None = None,
    *,
    return_lse: Literal[True],
) -> tuple[torch.Tensor, torch.Tensor]: ...
def attend_batch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    batch: PlanBatch,
    layer: int,
    scale: float | None = None,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attend rows of several prompts, each to the keys of its own that its plan marks.

    q: [heads, R, D]; k, v: [kv_heads, N, D], unrepeated, contiguous along D, other strides free;
    prompt p's rows begin at `row_base` of q and its keys, from its position 0 on, at `key_base` of
    k and v (`plan_batch`). Returns [heads, R, D] in q's dtype, with `return_lse` also the natural
    log-sum-exp, float32 [heads, R]; what belongs to no prompt is as the memory was. All of k and v
    must be finite. A row has the bits that `attend` gives it by the same implementation; the first
    plan stands for all where one is chosen. Compacted keys of all prompts take memory at once.
    Raises UsageError and PlanError as `attend`.
    """
    check_tensors(q, k, v)
    _check_batch(q, k, batch, layer)
    choice = choose(q, k, v, batch.parts[0].plan, scale)
    decoding = not return_lse and all(part.decodes for part in batch.parts)
    if decoding or choice.path not in (GLUON, TRITON):
        out, lse = _one_by_one(q, k, v, batch, layer, scale, return_lse)
    else:
        announce(choice)
        at_once = implementation(choice.path).attend_to_work
        out, lse = at_once(q, k, v, batch.work, layer, scale, return_lse)
    return (out, lse) if return_lse else out


def _one_by_one(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    batch: PlanBatch,
    layer: int,
    scale: float | None,
    return_lse: bool,
) -> Pair:
    heads, rows, dim = q.shape
    out = q.new_empty(rows, heads, dim).transpose(0, 1)  # as projections take it
    lse = q.new_empty((heads, rows) if return_lse else (0,), dtype=torch.float32)
    for part in batch.parts:
        mine = slice(part.row_base, part.row_base + part.rows)
        keys = slice(part.key_base, part.key_base + part.row_stop)
        arguments = (q[:, mine], k[:, keys], v[:, keys], part.plan, layer, part.row_start, scale)
        if not part.rows:
            continue
        if return_lse:
            out[:, mine], lse[:, mine] = attend(*arguments, return_lse=True)
        else:
            out[:, mine] = attend(*arguments)
    return out, lse


def _check_batch(q: torch.Tensor, k: torch.Tensor, batch: PlanBatch, layer: int) -> None:
    """Raise UsageError or PlanError unless the call is one the batch was made for."""
    check_layer(layer, batch.layout)
    hint = "pass the tensors of the call that the batch was made for"
    for what, needed, found in (("q's rows", batch.rows, q), ("k's tokens", batch.keys, k)):
        if found.shape[1] < needed:
            raise misfit(what, f"at least {needed}", found.shape[1], hint)
    if q.shape[0] != batch.layout.heads:
        hint = "use plans from an index of this model"
        raise misfit("q's heads", f"the plans' {batch.layout.heads}", q.shape[0], hint, PlanError)
    if batch.device != q.device:
        hint = f"decode them with device_plan(plan, {str(q.device)!r})"
        raise misfit("the plans' device", q.device, batch.device, hint, PlanError)
