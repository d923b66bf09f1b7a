"""One prefill to its first logits; dense and sparse differ in their attention alone.

All run the same model through the same attention hook, fill the same KV cache and compute the
logits of the last position only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from sift_index.adapters.hf_attention import AttentionHandler, attention_handler
from sift_index.bench import dense_calls
from sift_index.bench.ttft_cases import CUDNN, FA3, SDPA
from sift_index.bench.ttft_laps import ATTENTION, UPLOAD, Laps
from sift_index.errors import UsageError
from sift_index.kernels import varlen
from sift_index.kernels.api import SparsePlan, attend, dense_attention, device_plan
from sift_index.models.geometry import geometry_of

# Returns [heads, R, D] for layer, q [heads, R, D], k and v [kv_heads, N, D], and scale.
Attention = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]


class Prefill(Protocol):
    """A prefill that can be repeated."""

    def __call__(self, laps: Laps) -> torch.Tensor:
        """Return the last position's logits [1, 1, vocabulary]."""


@dataclass(frozen=True)
class _Timed:
    """The handler of dense and sparse rows: attention, and a lap around it."""

    attention: Attention
    laps: Laps

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        with self.laps.lap(ATTENTION):
            return self.attention(layer, q, k, v, scale)


def first_logits(
    model: Any, ids: torch.Tensor, handler: AttentionHandler, **options: Any
) -> torch.Tensor:
    """Run int64 [1, R] token ids through the model under a handler; see `Prefill`."""
    with torch.inference_mode(), attention_handler(model, handler):
        logits: torch.Tensor = model(input_ids=ids, logits_to_keep=1, **options).logits
    return logits


def dense_prefill(model: Any, ids: torch.Tensor, kind: str) -> Prefill:
    """Return the prefill that computes everything. Raises UsageError where `kind` cannot run."""
    attention = _DENSE[kind](model, ids)

    def run(laps: Laps) -> torch.Tensor:
        return first_logits(model, ids, _Timed(attention, laps), use_cache=True)

    return run


def sift_prefill(model: Any, ids: torch.Tensor, plan: SparsePlan) -> Prefill:
    """Return the prefill under a composed plan: uploaded, decoded, then attended to."""

    def run(laps: Laps) -> torch.Tensor:
        with laps.lap(UPLOAD):
            decoded = device_plan(plan, ids.device)

        def attention(
            layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
        ) -> torch.Tensor:
            return attend(q, k, v, decoded, layer, scale=scale)

        return first_logits(model, ids, _Timed(attention, laps), use_cache=True)

    return run


def _of_any_layer(
    dense: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor],
) -> Attention:
    def attention(
        layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        return dense(q, k, v, scale)

    return attention


def _fa3(model: Any, ids: torch.Tensor) -> Attention:
    head_dim = geometry_of(model.config).head_dim
    obstacle = varlen.BACKENDS[varlen.FA3].obstacle(ids.device, model.dtype, head_dim)
    if obstacle is not None:
        raise UsageError(obstacle)
    return _of_any_layer(dense_calls.fa3())


def _cudnn(model: Any, ids: torch.Tensor) -> Attention:
    if ids.device.type != "cuda":
        raise UsageError(f"the device is {ids.device.type}, not CUDA")
    return _of_any_layer(dense_calls.cudnn)


def _sdpa(model: Any, ids: torch.Tensor) -> Attention:
    return _of_any_layer(dense_attention)


_DENSE: dict[str, Callable[[Any, torch.Tensor], Attention]] = {
    FA3: _fa3,
    CUDNN: _cudnn,
    SDPA: _sdpa,
}
