"""A batch of a model's tensors as kernels take several prompts: packed, and not copied for it.

A model hands over q [B, heads, R, D] and k, v [B, kv_heads, N, D]; a kernel takes [heads, rows, D]
and is told where each prompt's begin. Key n of prompt b is row b * step + n of one view of k where
the stride of B is `step` times that of N. So it is in the memory that projections leave, where all
heads of a token are side by side (step N), and in that of a cache, where a head's tokens are (step
kv_heads * N; rows of such a view belong to more than one head, which nobody minds who only reads).
Copying K and V instead would read and write the whole cache in every layer, and a fourth dimension
of the kernels' descriptors would say nothing that the step does not.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from sift_index.adapters.prompt_rows import PromptRows
from sift_index.kernels.api import PlanBatch, plan_batch


class PackedKeys(NamedTuple):
    """k, v: [kv_heads, rows, D]; key n of prompt b is row b * step + n."""

    k: torch.Tensor
    v: torch.Tensor
    step: int


def packed_queries(q: torch.Tensor) -> torch.Tensor:
    """Return [heads, B * R, D] of q [B, heads, R, D]; a copy only of head-major memory."""
    return q.transpose(1, 2).flatten(0, 1).transpose(0, 1)


def packed_keys(k: torch.Tensor, v: torch.Tensor) -> PackedKeys:
    """Return views of k and v [B, kv_heads, N, D], copies where there are none of one step."""
    step = _step(k)
    if step is None or step != _step(v):
        k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
        step = k.shape[2]
    return PackedKeys(_view(k, step), _view(v, step), step)


def batch_of(
    rows: Sequence[PromptRows], numbers: Sequence[int], step: int, device: torch.device
) -> PlanBatch:
    """Return the plans of some prompts of a call, at their places in its packed tensors.

    rows: all prompts of the call; numbers: which of them.
    """
    some = [rows[number] for number in numbers]
    return plan_batch(
        [one.prompt.on(device) for one in some],
        [one.row_start for one in some],
        [one.count for one in some],
        [number * step + one.pad for number, one in zip(numbers, some, strict=True)],
        [number * one.columns + one.skipped for number, one in zip(numbers, some, strict=True)],
    )


def _step(x: torch.Tensor) -> int | None:
    """Return how many rows of N one of B is, None where it is no whole number."""
    batch, _, tokens, _ = x.shape
    if batch == 1 or tokens == 1:  # strides that mean nothing
        return None
    steps, rest = divmod(x.stride(0), x.stride(2)) if x.stride(2) else (0, 1)
    return None if rest else steps


def _view(x: torch.Tensor, step: int) -> torch.Tensor:
    batch, heads, tokens, dim = x.shape
    return x.as_strided((heads, (batch - 1) * step + tokens, dim), x.stride()[1:])
