"""KV of documents, computed once and kept: what methods that reuse KV would have on disk.

A document runs behind the prompt's leading glue, so its first token is no attention sink: the
strongest form of these baselines, which in their papers store documents that ran alone.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sift_index.adapters.hf_attention import run_under
from sift_index.formats.identity import document_key
from sift_index.kernels.api import dense_attention, turn
from sift_index.models.loading import LoadedModel

STORE_BYTES = 2 << 30


@dataclass(frozen=True, eq=False)
class StoredKV:
    """K and V of one document of n tokens that ran at position `start`, in the model's dtype.

    keys (rotated) and values: one [kv_heads, n, D] per layer.
    """

    start: int
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(part.nbytes for part in (*self.keys, *self.values))

    def keys_at(self, layer: int, start: int, frequencies: torch.Tensor) -> torch.Tensor:
        """Return one layer's keys [kv_heads, n, D] as if the document stood at `start`.

        frequencies: the model's inverse rotary frequencies.
        """
        keys = self.keys[layer]
        return turn(keys, start - self.start, frequencies).to(keys.dtype)


class KVStore:
    """Stored KV by leading glue and document, least recently used out first."""

    def __init__(self, loaded: LoadedModel, most_bytes: int = STORE_BYTES) -> None:
        """Start empty; above `most_bytes` only the newest document is sure to be kept."""
        self._loaded = loaded
        self._most_bytes = most_bytes
        self._kept: OrderedDict[tuple[bytes, bytes], StoredKV] = OrderedDict()

    def get(self, glue: Sequence[int], ids: Sequence[int]) -> StoredKV:
        """Return the KV of the document `ids` behind `glue`, running it when it is not kept."""
        key = (document_key(glue), document_key(ids))
        if key not in self._kept:
            self._kept[key] = self._run(glue, ids)
            self._shrink()
        self._kept.move_to_end(key)
        return self._kept[key]

    def _shrink(self) -> None:
        total = sum(stored.nbytes for stored in self._kept.values())
        while total > self._most_bytes and len(self._kept) > 1:
            total -= self._kept.popitem(last=False)[1].nbytes

    def _run(self, glue: Sequence[int], ids: Sequence[int]) -> StoredKV:
        capture = _Capture(len(glue))
        run_under(self._loaded.model, [*glue, *ids], capture)
        return StoredKV(len(glue), tuple(capture.keys), tuple(capture.values))


class _Capture:
    """Dense attention that keeps K and V from position `start` on."""

    def __init__(self, start: int) -> None:
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self._start = start

    def attend(self, layer: int, q: Any, k: Any, v: Any, scale: float) -> torch.Tensor:
        # Copies: a slice would keep the glue's KV alive as well.
        self.keys.append(k[:, self._start :].clone())
        self.values.append(v[:, self._start :].clone())
        return dense_attention(q, k, v, scale)
