"""The one attention function registered with transformers, and how it is switched on for a while.

transformers looks attention up by name and passes it no plan, so the active handlers travel in a
context variable: that works for `model(...)` and `model.generate(...)` alike, and per thread. They
are told apart by the model's config, which its attention layers share. The mask function is
registered under the same name, because without it padding would be ignored silently. With no
handler active both behave like PyTorch's scaled-dot-product attention.
"""

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from sift_index.adapters.blocks import Blocks, uncompiled
from sift_index.errors import PlanError, SiftWarning

NAME = "sift"


class AttentionHandler(Protocol):
    """Computes the attention of one prompt, layer by layer."""

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Return [heads, R, D] for q [heads, R, D] and k, v [kv_heads, N, D], all rotated."""


@runtime_checkable
class BatchHandler(Protocol):
    """Computes the attention of several prompts, and knows which tokens are padding."""

    def attend_batch(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Return [B, R, heads, D] for q [B, heads, R, D] and k, v [B, kv_heads, N, D], rotated."""


Handler: TypeAlias = AttentionHandler | BatchHandler

_NOT_THIS_THREAD = (
    "this call runs densely: a plan is active for this model in another thread, not in this one; "
    "start the thread with contextvars.copy_context().run, or open the block inside it"
)

_NO_GRADIENTS = (
    "no gradients flow through sparse attention here, so that those of the layers below are wrong: "
    "run the model under torch.inference_mode(), or train it without a plan"
)

# Two models in one thread, or one model twice, keep their own.
_active: Blocks[tuple[Any, Handler]] = Blocks("sift_attention_handlers")


@dataclass
class _Switched:
    """A model that currently uses our attention: its own implementation, and how many asked."""

    original: str
    users: int = 0


_switched: "WeakKeyDictionary[torch.nn.Module, _Switched]" = WeakKeyDictionary()
_lock = threading.Lock()


@contextmanager
def attention_handler(model: Any, handler: Handler) -> Iterator[None]:
    """Route the model's attention through `handler` in this thread, and restore it afterwards."""
    _switch_on(model)
    try:
        with _active.entered((model.config, handler)):
            yield
    finally:
        _switch_off(model)


def run_under(model: Any, ids: Sequence[int], handler: AttentionHandler) -> None:
    """Run token ids through the model's layers for what `handler` sees: no cache, no logits."""
    device = next(model.parameters()).device
    tokens = torch.tensor([list(ids)], device=device)
    with torch.inference_mode(), attention_handler(model, handler):
        model.base_model(input_ids=tokens, use_cache=False)


def active_handler(config: Any) -> Handler | None:
    """Return the innermost handler of this thread for the model with this config object."""
    found = (handler for owner, handler in _active.innermost_first() if owner is config)
    return next(found, None)


def _switch_on(model: Any) -> None:
    with _lock:
        if model not in _switched:
            current = model.config._attn_implementation
            if any(other.config is model.config for other in _switched):
                raise PlanError(
                    "expected a model with a config of its own, found one that shares it with a "
                    "model that runs under a plan; make or load it with a copy of the config"
                )
            if current == NAME:
                raise PlanError(
                    f"expected a model with its own attention, found one left on {NAME!r} by "
                    "somebody else; load it with attn_implementation='sdpa'"
                )
            model.set_attn_implementation(NAME)
            _switched[model] = _Switched(current)
        _switched[model].users += 1


def _switch_off(model: Any) -> None:
    with _lock:
        state = _switched[model]
        state.users -= 1
        if state.users == 0:
            model.set_attn_implementation(state.original)
            del _switched[model]


@uncompiled
def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it: query [B, heads, R, D], key and value unrepeated."""
    handler = active_handler(module.config)
    if handler is None:
        if module.layer_idx == 0:
            warnings.warn(_NOT_THIS_THREAD, SiftWarning, stacklevel=3)
        fallback: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return fallback
    if attention_mask is not None:
        raise PlanError(
            f"expected no attention mask beside the plan, found one of shape "
            f"{list(attention_mask.shape)}; leave attention_mask out"
        )
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = _attended(handler, layer, query, key, value, scale)
    if query.requires_grad and not out.requires_grad:
        warnings.warn(_NO_GRADIENTS, SiftWarning, stacklevel=3)
    return out, None


def _attended(
    handler: Handler,
    layer: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Return [B, R, heads, D]."""
    if isinstance(handler, BatchHandler):
        return handler.attend_batch(layer, query, key, value, scale)
    if query.shape[0] != 1:
        raise PlanError(f"expected one prompt per call, found a batch of {query.shape[0]}")
    out = handler.attend(layer, query[0], key[0], value[0], scale)
    return out.transpose(0, 1)[None].contiguous()


@uncompiled
def _mask(*, config: Any, attention_mask: torch.Tensor | None = None, **kwargs: Any) -> Any:
    """Mask as transformers calls it: None under a handler, which is causal by itself."""
    handler = active_handler(config)
    if handler is None:
        return sdpa_mask(config=config, attention_mask=attention_mask, **kwargs)
    if isinstance(handler, BatchHandler):
        return None  # it has looked at the padding before the call
    if attention_mask is not None and not bool(attention_mask.all()):
        raise PlanError(
            "expected a prompt without padding, found masked tokens; remove the padding"
        )
    return None


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)
