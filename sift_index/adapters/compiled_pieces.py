"""The pointwise pieces of a decoder, each as one function of tensors that torch.compile can fuse.

A piece sees rows: batch and tokens as one leading dimension, marked dynamic, so that every batch
and prompt length runs the same code. It runs the model's own code, never a formula of ours.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

Function = Callable[..., Any]
Forward = Callable[..., torch.Tensor]
# Returns the backend of this thread's `compiled_pieces` block, or None outside one.
Backend = Callable[[], str | None]

# Layers of these run norm, attention, add, norm, MLP, add; the first add fuses with a norm.
PRE_NORM_LAYERS = (
    "LlamaDecoderLayer",
    "MistralDecoderLayer",
    "Qwen2DecoderLayer",
    "Qwen3DecoderLayer",
)


@cache
def compiled(function: Function, backend: str) -> Function:
    """Return a function compiled once per process, for any number of rows."""
    wrapped: Function = torch.compile(function, backend=backend, dynamic=False)
    return wrapped


def is_norm(module: torch.nn.Module) -> bool:
    """Whether a module is one of transformers' RMSNorms."""
    return type(module).__name__.endswith("RMSNorm") and hasattr(module, "weight")


def is_gated_mlp(module: torch.nn.Module) -> bool:
    """Whether a module computes down(act(gate(x)) * up(x)), as every supported dense MLP does."""
    parts = ("gate_proj", "up_proj", "down_proj", "act_fn")
    return type(module).__name__.endswith("MLP") and all(hasattr(module, name) for name in parts)


def is_pre_norm_layer(module: torch.nn.Module) -> bool:
    """Whether a module is a decoder layer whose first residual add feeds its second norm."""
    return type(module).__name__ in PRE_NORM_LAYERS


def norm_forward(module: Any, backend: Backend) -> Forward:
    """Return the forward of an RMSNorm as one compiled piece."""
    original: Forward = type(module).forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        chosen = _chosen(backend, x)
        if chosen is None:
            return original(module, x)
        out: torch.Tensor = compiled(original, chosen)(module, rows_of(x))
        return out.view(x.shape)

    return forward


def mlp_forward(module: Any, backend: Backend) -> Forward:
    """Return the forward of a gated MLP; activation and product are one compiled piece."""
    original: Forward = type(module).forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        chosen = _chosen(backend, x)
        if chosen is None:
            return original(module, x)
        gate, up = rows_of(module.gate_proj(x)), rows_of(module.up_proj(x))
        product = compiled(_gated, chosen)(module.act_fn, gate, up)
        out: torch.Tensor = module.down_proj(product.view(*x.shape[:-1], -1))
        return out

    return forward


def layer_forward(module: Any, backend: Backend) -> Forward:
    """Return the forward of a pre-norm layer; the first add and the norm behind it are one piece.

    The other add feeds the next layer's norm and stays as it is.
    """
    original: Forward = type(module).forward

    def forward(hidden_states: torch.Tensor, **rest: Any) -> torch.Tensor:
        chosen = _chosen(backend, hidden_states)
        if chosen is None:
            return original(module, hidden_states, **rest)
        attended, _ = module.self_attn(hidden_states=module.input_layernorm(hidden_states), **rest)
        residual, normed = compiled(_add_norm, chosen)(
            module.post_attention_layernorm, rows_of(hidden_states), rows_of(attended)
        )
        shape = hidden_states.shape
        out: torch.Tensor = residual.view(shape) + module.mlp(normed.view(shape))
        return out

    return forward


def rotary_function(original: Function, backend: Backend) -> Function:
    """Return a model's `apply_rotary_pos_emb` as one compiled piece.

    q: [B, heads, R, D], k: [B, kv_heads, R, D], cos and sin: [B or 1, R, rotary dimensions].
    """

    def apply_rotary_pos_emb(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *more: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        batch, _, tokens, dim = q.shape
        chosen = _chosen(backend, q[:, 0])
        if chosen is None or more:
            found: tuple[torch.Tensor, torch.Tensor] = original(q, k, cos, sin, *more)
            return found
        # [B, heads, R, D] is a view of what the projections wrote: [B, R, heads, D].
        heads = [rows_of(x.transpose(1, 2), 2) for x in (q, k)]
        angles = [rows_of(x.expand(batch, -1, -1)) for x in (cos, sin)]
        turned = compiled(original, chosen)(*heads, *angles)
        q, k = (x.view(batch, tokens, -1, dim).transpose(1, 2) for x in turned)
        return q, k

    return apply_rotary_pos_emb


def rows_of(x: torch.Tensor, kept: int = 1) -> torch.Tensor:
    """Return x as [rows, last `kept` dimensions], its number of rows marked dynamic."""
    rows = x.reshape(-1, *x.shape[-kept:])
    torch._dynamo.mark_dynamic(rows, 0)
    return rows


def _chosen(backend: Backend, x: torch.Tensor) -> str | None:
    """Return the backend for x [..., D], or None: one row has nothing to fuse, and compiles anew.

    Gradients are left to the model's own code.
    """
    few = x.numel() < 2 * x.shape[-1]
    return None if few or torch.is_grad_enabled() else backend()


def _gated(act: Function, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    product: torch.Tensor = act(gate) * up
    return product


def _add_norm(
    norm: Any, residual: torch.Tensor, x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    total = residual + x
    return total, type(norm).forward(norm, total)
