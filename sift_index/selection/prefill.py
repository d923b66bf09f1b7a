"""Packed prefill: many documents behind one shared prefix in one forward pass, layers observed.

Nothing of a document is needed behind the last layer that is observed, so the pass ends there: what
that layer makes of its attention, and every layer behind it, is never computed.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch

from sift_index.adapters.hf_attention import attention_handler
from sift_index.kernels.api import Packed, PackedAttention
from sift_index.kernels.device_plan import upload_tables

# layer, q [heads, T, D], k [kv_heads, T, D], log-sum-exp [heads, T], scale; of the whole sequence
Observe = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, float], None]


def run_packed(
    model: Any,
    prefix: Sequence[int],
    documents: Sequence[Sequence[int]],
    observe: Observe,
    last_layer: int | None = None,
) -> None:
    """Run documents through the model's layers for what `observe` sees: no cache, no logits.

    Waits for nothing a GPU does. The pass ends behind the observation of `last_layer`, or where
    there is none, with the model.
    """
    packed = packed_documents(prefix, documents)
    device = next(model.parameters()).device
    ids = np.fromiter(chain(prefix, *documents), np.int64, packed.total)
    tokens, positions = upload_tables((ids, packed.positions().numpy()), device)
    handler = _Observing(PackedAttention(packed, device), observe, last_layer)
    try:
        with torch.inference_mode(), attention_handler(model, handler):
            model.base_model(input_ids=tokens[None], position_ids=positions[None], use_cache=False)
    except _EnoughError:
        pass


def packed_documents(prefix: Sequence[int], documents: Sequence[Sequence[int]]) -> Packed:
    """Return how documents lie in one sequence."""
    return Packed(len(prefix), tuple(len(document) for document in documents))


class _EnoughError(Exception):
    """Everything has been observed; the only way out of the middle of somebody else's model."""


class _Observing:
    """Dense attention of packed documents that shows every layer."""

    def __init__(
        self, attention: PackedAttention, observe: Observe, last_layer: int | None
    ) -> None:
        self._attention, self._observe, self._last_layer = attention, observe, last_layer

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        out, lse = self._attention(q, k, v, scale)
        self._observe(layer, q, k, lse, scale)
        if layer == self._last_layer:
            raise _EnoughError
        return out
