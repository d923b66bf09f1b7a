"""Attention written out in full, as the opposite of the code under test: L x L, float64, no blocks.

`eager` puts it into a model through transformers' own interface, with or without a mask, and keeps
each layer's inputs, so that tests can recompute statistics and outputs from scratch. Gradients
pass through it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface

NAME = "test_eager"


@dataclass
class Seen:
    """What each layer received: q [heads, L, D], k [kv_heads, L, D], rotated, and its scale."""

    q: dict[int, torch.Tensor] = field(default_factory=dict)
    k: dict[int, torch.Tensor] = field(default_factory=dict)
    scale: float = 0.0

    def scores(self, layer: int) -> np.ndarray:
        """Return float64 [heads, L, L] scores, not yet causal."""
        return scores64(self.q[layer], self.k[layer], self.scale)

    def probabilities(self, layer: int) -> np.ndarray:
        """Return float64 [heads, L, L] causal attention probabilities."""
        scores = self.scores(layer)
        scores[:, ~np.tri(scores.shape[-1], dtype=bool)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True)


@dataclass
class _Current:
    masks: Sequence[np.ndarray] | None = None
    seen: Seen = field(default_factory=Seen)


_current = _Current()


def scores64(q: torch.Tensor, k: torch.Tensor, scale: float) -> np.ndarray:
    """Return float64 [heads, rows, keys]: q [heads, rows, D] against k [kv_heads, keys, D]."""
    found: np.ndarray = _scores(q, k, scale).numpy()
    return found


def _scores(q: torch.Tensor, k: torch.Tensor, scale: float) -> torch.Tensor:
    keys = k.double().repeat_interleave(q.shape[0] // k.shape[0], 0)
    return q.double() @ keys.transpose(-1, -2) * scale


@contextmanager
def eager(model: Any, masks: Sequence[np.ndarray] | None = None) -> Iterator[Seen]:
    """Run the model with full causal attention, or with one bool mask [heads, L, L] per layer."""
    global _current
    before, _current = _current, _Current(masks)
    original = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield _current.seen
    finally:
        model.set_attn_implementation(original)
        _current = before


def eager_logits(
    model: Any, ids: Sequence[int], masks: Sequence[np.ndarray] | None = None
) -> torch.Tensor:
    """Return logits [L, vocabulary] of a prompt under full attention, or under masks."""
    with torch.inference_mode(), eager(model, masks):
        logits: torch.Tensor = model(torch.tensor([list(ids)]), use_cache=False).logits[0]
    return logits


def _eager(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float, **_: Any
) -> tuple[torch.Tensor, None]:
    layer, q, k, v = int(module.layer_idx), query[0], key[0], value[0]
    _current.seen.q[layer], _current.seen.k[layer] = q.detach().clone(), k.detach().clone()
    _current.seen.scale = scaling
    length = q.shape[1]
    mask = torch.ones(length, length, dtype=torch.bool).tril()[None]
    if _current.masks is not None:
        mask = torch.from_numpy(_current.masks[layer])
    scores = _scores(q, k, scaling).masked_fill(~mask, float("-inf"))
    values = v.double().repeat_interleave(q.shape[0] // k.shape[0], 0)
    out = (scores.softmax(-1) @ values).to(q.dtype)
    return out.transpose(0, 1)[None].contiguous(), None


def _no_mask(**_: Any) -> None:
    return None


AttentionInterface.register(NAME, _eager)
AttentionMaskInterface.register(NAME, _no_mask)
