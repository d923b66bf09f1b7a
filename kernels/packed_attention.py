"""Dense causal attention of packed documents, each to the shared prefix and to itself.

On a GPU this is one call of an attention library (`varlen`), for which the prefix's keys are copied
in front of each document's: for short documents that is cheaper than a second call and a merge, for
long ones it is nothing. Elsewhere, and for types that no library takes, documents take turns.
"""

import numpy as np
import torch

from sift_index.kernels import varlen
from sift_index.kernels.dense import causal_attention
from sift_index.kernels.device_plan import upload_tables
from sift_index.kernels.lists import Pair
from sift_index.kernels.packed import Packed


class PackedAttention:
    """The attention of one batch of documents; tables are uploaded once, for all layers."""

    def __init__(self, packed: Packed, device: torch.device) -> None:
        self._packed = packed
        self._entries = _Entries(packed, device) if device.type == "cuda" else None

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return [heads, T, D] in q's dtype and natural log-sum-exp, float32 [heads, T].

        q: [heads, T, D]; k, v: [kv_heads, T, D] of the packed sequence, contiguous along D.
        """
        backend = varlen.best(q.device, q.dtype, q.shape[2]).backend
        if self._entries is None or backend is None:
            return _one_by_one(q, k, v, self._packed, scale)
        return self._entries.attend(backend.attend, q, k, v, scale)


class _Entries:
    """A library's entries: the first is prefix and first document, each other one a document."""

    def __init__(self, packed: Packed, device: torch.device) -> None:
        keys = np.array(packed.lengths) + packed.prefix
        rows = np.array(packed.lengths)
        rows[0] = keys[0]
        ends = np.cumsum(keys)
        cu_q = np.append(0, np.cumsum(rows))
        tables = (cu_q, ends - keys, keys, _sources(packed))
        self._cu_q, self._k_start, self._k_used, self._sources = upload_tables(tables, device)
        self._longest = (int(rows.max()), int(keys.max()))
        # Of one document, or without a prefix, every key is where it has to be.
        self._copied = packed.prefix > 0 and len(packed.lengths) > 1

    def attend(
        self,
        attend: varlen.Attend,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale: float,
    ) -> Pair:
        # [T, heads, D], views
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        if self._copied:
            k, v = (x.index_select(0, self._sources) for x in (k, v))
        entries = (self._cu_q, self._k_start, self._k_used, *self._longest)
        out, lse = attend(q, k, v, *entries, scale, True)
        return out.transpose(0, 1), lse


def _sources(packed: Packed) -> np.ndarray:
    """Return int [keys]: the token of the sequence each key of the entries is."""
    ahead = np.arange(packed.prefix)
    parts = ((ahead, np.arange(rows.start, rows.stop)) for rows in packed.rows)
    return np.concatenate([part for pair in parts for part in pair])


def _one_by_one(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, packed: Packed, scale: float
) -> Pair:
    """Attend document by document, each with the prefix's rows in front of its own."""
    out, lse = torch.empty_like(q), q.new_empty(q.shape[:2], dtype=torch.float32)
    for number, rows in enumerate(packed.rows):
        q_own, k_own, v_own = (_behind_prefix(x, packed.prefix, rows) for x in (q, k, v))
        found, its_lse = causal_attention(q_own, k_own, v_own, scale)
        # The prefix's rows are the same for all; the first document brings them along.
        kept = packed.prefix if number else 0
        target = slice(rows.start - packed.prefix + kept, rows.stop)
        out[:, target], lse[:, target] = found[:, kept:], its_lse[:, kept:]
    return out, lse


def _behind_prefix(x: torch.Tensor, prefix: int, rows: slice) -> torch.Tensor:
    """Return [heads, prefix + n, D]; without a copy where the document follows the prefix."""
    if rows.start == prefix:
        return x[:, : rows.stop]
    return torch.cat((x[:, :prefix], x[:, rows]), 1) if prefix else x[:, rows]
