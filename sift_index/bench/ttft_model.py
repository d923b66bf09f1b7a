"""A model of a given shape with random weights, and the memory that a prefill of it needs."""

from pathlib import Path
from typing import Any

import torch

from sift_index.errors import UsageError
from sift_index.models.geometry import geometry_of
from sift_index.models.presets import load_preset, preset_names
from sift_index.models.support import check_supported

GIB = 1 << 30
# Blocks of PyTorch's allocator that are free but too small, and workspaces of libraries.
RESERVE = 1.1


def shape_config(name: str, layers: int | None = None) -> Any:
    """Return the config of a preset or of a folder with a config.json, cut to `layers`.

    Raises UsageError for a name that is neither, or layers that it lacks; UnsupportedModelError.
    """
    from transformers import AutoConfig

    if name in preset_names():
        values = dict(load_preset(name).config)
        config = AutoConfig.for_model(values.pop("model_type"), **values)
    elif (Path(name) / "config.json").is_file():
        config = AutoConfig.from_pretrained(name)
    else:
        raise UsageError(
            f"--model-shape: expected a preset ({', '.join(preset_names())}) or a folder with a "
            f"config.json, found {name!r}"
        )
    check_supported(config)
    return config if layers is None else _cut(config, layers)


def _cut(config: Any, layers: int) -> Any:
    if not 1 <= layers <= config.num_hidden_layers:
        raise UsageError(
            f"--layers: expected 1 to {config.num_hidden_layers}, the model's, found {layers}"
        )
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    return config


def random_model(config: Any, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Any:
    """Return a causal language model with random weights, made on the device."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.to(device).eval()


def check_context(config: Any, tokens: int) -> None:
    """Raise UsageError for prompts that are longer than the model takes."""
    longest = geometry_of(config).context
    if tokens > longest:
        raise UsageError(
            f"--tokens: expected at most {longest:,}, the context of the model, found {tokens:,}"
        )


def prefill_bytes(config: Any, tokens: int, itemsize: int = 2) -> int:
    """Return about how many bytes a prefill takes beside the weights, its KV cache included.

    The larger of two moments: an MLP (input, two projections, activation, product) and attention
    (q, k, v before and after rotation, output, and the lists of all heads, as long as the prompt).
    """
    shape = geometry_of(config)
    heads, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    mlp = 6 * shape.hidden_size + 4 * int(config.intermediate_size)
    attention = 3 * shape.hidden_size + 7 * heads + 6 * kv
    moment = tokens * itemsize * max(mlp, attention)
    return int(RESERVE * (shape.kv_bytes(tokens, itemsize) + moment))


def free_bytes(device: torch.device) -> int | None:
    """Return the bytes a GPU has left for this process, None where that is not known."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free) + int(unused)


def misfit(config: Any, tokens: int, itemsize: int, free: int | None) -> str | None:
    """Return why a prefill does not fit into `free` bytes, or None."""
    needed = prefill_bytes(config, tokens, itemsize)
    if free is None or needed <= free:
        return None
    return (
        f"expected {needed / GIB:.1f} GiB of free GPU memory for {tokens:,} tokens, found "
        f"{free / GIB:.1f} GiB; take shorter prompts, or fewer layers with --layers"
    )
