"""Dense causal attention that keeps its log-sum-exp, for the passes that observe a model.

With the log-sum-exp at hand, any part of the probabilities can be formed on its own: no pass over a
whole row is needed to normalise it.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention

from sift_index.kernels.plan import TILE


def causal_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention [heads, n, D] in q's dtype and natural log-sum-exp, float32 [heads, n].

    q: [heads, n, D]; k, v: [kv_heads, n, D], unrepeated.
    """
    if q.device.type == "cpu":
        return _cpu_flash_attention(q, k, v, scale)
    out = scaled_dot_product_attention(
        q[None], k[None], v[None], is_causal=True, scale=scale, enable_gqa=True
    )[0]
    return out, causal_log_sum_exp(q, k, scale)


def dense_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> torch.Tensor:
    """Causal attention of the last R of N tokens to all of them, in q's dtype.

    q: [heads, R, D]; k, v: [kv_heads, N, D], unrepeated. Returns [heads, R, D].
    """
    rows, keys = q.shape[1], k.shape[1]
    mask = None
    if 1 < rows < keys:  # is_causal would count the rows from the first key on
        mask = torch.ones(rows, keys, dtype=torch.bool, device=q.device).tril(keys - rows)
    return scaled_dot_product_attention(
        q[None], k[None], v[None], mask, is_causal=rows == keys, scale=scale, enable_gqa=True
    )[0]


def causal_log_sum_exp(q: torch.Tensor, k: torch.Tensor, scale: float) -> torch.Tensor:
    """Return the log-sum-exp of causal scores, float32 [heads, n], one tile of rows at a time."""
    n = q.shape[1]
    parts = []
    for begin in range(0, n, TILE):
        end = min(begin + TILE, n)
        scores = grouped_scores(q[:, begin:end], k[:, :end], scale)
        scores[..., begin:].masked_fill_(later_keys(end - begin, q.device), float("-inf"))
        parts.append(scores.logsumexp(-1))
    return torch.cat(parts, dim=1)


def grouped_scores(q: torch.Tensor, k: torch.Tensor, scale: float) -> torch.Tensor:
    """Return float32 [heads, rows, keys] scores; query heads share their group's keys."""
    heads, rows, dim = q.shape
    grouped = (q.float() * scale).reshape(k.shape[0], -1, dim)
    return (grouped @ k.float().transpose(-1, -2)).reshape(heads, rows, -1)


def later_keys(rows: int, device: torch.device) -> torch.Tensor:
    """Return bool [rows, rows]: keys behind each row of a diagonal tile."""
    return torch.ones(rows, rows, dtype=torch.bool, device=device).triu(1)


def _cpu_flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Use the operator behind PyTorch's CPU attention directly: it returns the log-sum-exp too."""
    group = q.shape[0] // k.shape[0]
    keys, values = (x.repeat_interleave(group, dim=0)[None] for x in (k, v))
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q[None], keys, values, 0.0, True, scale=scale
    )
    return out[0], lse[0].float()
