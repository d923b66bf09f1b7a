"""Which architectures can be indexed, and the reason for each one that cannot.

Masks are per layer and head of ordinary causal attention with static rotary embeddings. Anything
else is refused by name before weights are loaded: a wrong mask would be silent.
"""

from typing import Any

from sift_index.errors import UnsupportedModelError

# Each is covered by a test with random weights: all bits on equals dense, keys turn correctly.
TESTED_TYPES = (
    "llama",
    "minimax_m2",
    "mistral",
    "mixtral",
    "olmo2",
    "qwen2",
    "qwen3",
    "qwen3_moe",
)
STATIC_ROPE = ("default", "linear", "llama3", "yarn")


def rope_parameters(config: Any) -> dict[str, Any]:
    """Return a config's rotary parameters, whatever the transformers version calls them."""
    found = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    values = dict(found)
    values.setdefault("rope_type", values.pop("type", "default"))
    if "rope_theta" not in values and getattr(config, "rope_theta", None) is not None:
        values["rope_theta"] = config.rope_theta
    return values


def check_supported(config: Any) -> None:
    """Raise UnsupportedModelError with the reason when a model of this config cannot be indexed."""
    reason = unsupported_reason(config)
    if reason:
        kind = getattr(config, "model_type", "unknown")
        raise UnsupportedModelError(
            f"model type '{kind}' cannot be indexed: {reason}. Supported: {', '.join(TESTED_TYPES)}"
        )


def unsupported_reason(config: Any) -> str | None:
    """Return why a config cannot be indexed, or None when it can."""
    checks = (_not_a_decoder, _other_attention, _windowed, _rope, _untested)
    return next((reason for check in checks if (reason := check(config))), None)


def _not_a_decoder(config: Any) -> str | None:
    if getattr(config, "is_encoder_decoder", False):
        return "encoder-decoder models have no single causal prompt"
    names = getattr(config, "architectures", None) or []
    if names and not any("CausalLM" in name for name in names):
        return (
            f"expected a causal language model, found {', '.join(names)} (encoders do not prefill)"
        )
    return None


def _other_attention(config: Any) -> str | None:
    if getattr(config, "kv_lora_rank", None):
        return "multi-head latent attention (MLA) has no per-head keys to mark"
    if getattr(config, "attn_logit_softcapping", None):
        return "soft-capped attention scores are not implemented in the sparse kernels"
    if getattr(config, "model_type", "") == "gpt_oss":
        return "learned attention sinks are not implemented in the sparse kernels"
    return None


def _windowed(config: Any) -> str | None:
    layers = set(getattr(config, "layer_types", None) or [])
    if "sliding_attention" in layers or "chunked_attention" in layers:
        return "sliding-window or chunked layers already skip the keys an index would mark"
    other = layers - {"full_attention", "attention"}
    if other:
        return f"layers of type {', '.join(sorted(other))} are not softmax attention"
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True):
        return f"sliding-window attention ({window} tokens) already skips the keys of an index"
    return None


def _rope(config: Any) -> str | None:
    values = rope_parameters(config)
    kind = values["rope_type"]
    if kind == "dynamic":
        return (
            "dynamic-NTK rotary embeddings change with the prompt length, so keys cannot be turned"
        )
    if kind == "longrope":
        return "LongRoPE switches its frequencies with the prompt length, so keys cannot be turned"
    if kind not in STATIC_ROPE:
        return f"rotary embeddings of type {kind!r} are unknown here"
    if "mrope_section" in values:
        return "multi-axis rotary embeddings (M-RoPE) have no single position"
    return None


def _untested(config: Any) -> str | None:
    kind = getattr(config, "model_type", "")
    return None if kind in TESTED_TYPES else "it is not among the tested architectures"
