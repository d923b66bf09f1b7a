"""What tests of packed documents share: random tensors, and the truth document by document."""

import torch

from sift_index.kernels.packed import Packed
from sift_index.kernels.rope import turn
from sift_index.kernels.statistics import local_scores, probe_scores

HEADS, KV = 4, 2


def tensors(packed: Packed, dim: int, device: torch.device, dtype=torch.float32, size: float = 1.5):
    """Return q, k and v of a packed sequence, in memory as projections leave them."""
    torch.manual_seed(packed.total)
    shapes = ((packed.total, heads, dim) for heads in (HEADS, KV, KV))
    return [(torch.randn(s) * size).to(device, dtype).transpose(0, 1) for s in shapes]


def bank(rows: int, dim: int, device: torch.device, dtype=torch.float32):
    """Return the queries and the log-sum-exp of a probe bank."""
    torch.manual_seed(rows)
    q = (torch.randn(HEADS, rows, dim) * 1.5).to(device, dtype)
    return q, (torch.randn(HEADS, rows) + 3).to(device)


def frequencies(pairs: int, device: torch.device) -> torch.Tensor:
    """Return the inverse rotary frequencies of this many pairs of dimensions."""
    return (1.0 / 10000 ** (torch.arange(pairs) / pairs)).to(device)


def true_probe_scores(q, lse, k, packed: Packed, inverse, window, page, scale) -> torch.Tensor:
    """Score every document by itself with keys turned in float32."""
    return packed.pages(page).join(
        probe_scores(q, lse, turn(k[:, rows], rows.start - rows.stop, inverse), window, page, scale)
        for rows in packed.rows
    )


def true_local_scores(q, k, lse, packed: Packed, dense, window, page, scale) -> torch.Tensor:
    """Score every document of more than `dense` tiles by itself."""
    triangles = packed.triangles(dense)
    return triangles.join(
        local_scores(q[:, rows], k[:, rows], lse[:, rows], window, page, scale)
        for rows, count in zip(packed.rows, triangles.counts, strict=True)
        if count
    )
