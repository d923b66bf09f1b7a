"""Dense causal attention by the fastest library there is: for prompts that do not pay sparse."""

from functools import lru_cache

import numpy as np
import torch

from sift_index.kernels import varlen
from sift_index.kernels.dense import dense_attention
from sift_index.kernels.device_plan import upload_tables


@torch.no_grad()
def dense_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Causal attention of the last R of N tokens to all of them, in q's dtype.

    q: [heads, R, D]; k, v: [kv_heads, N, D], unrepeated, contiguous along D. Returns [heads, R, D].
    On a GPU by FlashAttention-3 or the next best library (`varlen.best`), elsewhere by PyTorch,
    which also decodes single rows.
    """
    rows, keys = q.shape[1], k.shape[1]
    backend = varlen.best(q.device, q.dtype, q.shape[2]).backend if q.is_cuda else None
    if backend is None or rows == 1:
        return dense_attention(q, k, v, scale)
    cu_q, k_start, k_used = _tables(rows, keys, q.device)
    own_q, own_k, own_v = (x.transpose(0, 1) for x in (q, k, v))
    out, _ = backend.attend(
        own_q, own_k, own_v, cu_q, k_start, k_used, rows, keys, scale, causal=True
    )
    return out.transpose(0, 1)


@lru_cache(maxsize=1)
def _tables(rows: int, keys: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Return cu_q, k_start and k_used of one entry; every layer of a forward pass asks for them."""
    return tuple(upload_tables([np.array(x) for x in ([0, rows], [0], [keys])], device))
