"""FlexAttention on the tiles of an aligned plan: the peer that takes any mask of whole tiles."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from sift_index.bench.inputs import Problem
from sift_index.bench.work import tile_matrix
from sift_index.errors import UsageError
from sift_index.kernels.api import TILE


def flex_attention_run(problem: Problem) -> Callable[[], torch.Tensor]:
    """Return compiled FlexAttention; its first call compiles. Raises UsageError without CUDA."""
    q, k, v = (x[None] for x in problem.inputs.by_head())
    if not q.is_cuda:
        raise UsageError(
            f"expected CUDA tensors, found {q.device}; FlexAttention is timed on a GPU"
        )
    mask = block_mask(torch.from_numpy(tile_matrix(problem.plan)).to(q.device))
    attend = _compiled(problem.case.shape)
    return lambda: attend(q, k, v, block_mask=mask, enable_gqa=True)[0]


def block_mask(tiles: torch.Tensor) -> BlockMask:
    """Return the mask of bool [heads, n, n] lower-triangular tiles, the diagonal on.

    Tiles on the diagonal run under the causal mask, all others without one.
    """
    heads, count, _ = tiles.shape
    whole = tiles & torch.ones_like(tiles).tril(-1)
    diagonal = torch.arange(count, device=tiles.device, dtype=torch.int32)
    padded = torch.nn.functional.pad(diagonal[:, None], (0, count - 1))
    return BlockMask.from_kv_blocks(
        torch.ones(1, heads, count, dtype=torch.int32, device=tiles.device),
        padded.expand(1, heads, count, count).contiguous(),
        whole.sum(-1, dtype=torch.int32)[None],
        # Columns that are on come first, in order; what follows is never read.
        whole.to(torch.int8).argsort(dim=-1, descending=True, stable=True).int()[None],
        BLOCK_SIZE=TILE,
        mask_mod=_causal,
    )


def _causal(
    batch: torch.Tensor, head: torch.Tensor, row: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    return row >= key


@lru_cache(maxsize=1)
def _compiled(shape: str) -> Any:
    """Return FlexAttention compiled for one shape alone, which is when it is fastest.

    Forgetting earlier shapes keeps it under dynamo's limit of recompilations, behind which it would
    run uncompiled; `fullgraph` makes that an error.
    """
    torch._dynamo.reset()
    return torch.compile(flex_attention, fullgraph=True, dynamic=False)
