"""Digests of what a model is: its weights by content, its tokenizer by vocabulary.

The weight digest reads every value (an integer sum of the bf16 bit patterns) and the place of
some (evenly spaced samples), so it costs one pass over memory, gives the same result on every
device, and is the same when one checkpoint is loaded as float32 or as bfloat16.
"""

import hashlib
import json
from typing import Any
from weakref import WeakKeyDictionary

import torch

SAMPLES = 1024
# Digests by model, each with the writes to its parameters that it has seen.
_CACHE: "WeakKeyDictionary[torch.nn.Module, tuple[int, str]]" = WeakKeyDictionary()


def weights_digest(model: torch.nn.Module) -> str:
    """Return the 128-bit hex digest of a model's parameters; again only after one was written to.

    Writes through `.data` and in inference mode are not noticed: nothing in PyTorch counts them.
    """
    writes, digest = _CACHE.get(model, (-1, ""))
    if writes != (found := _writes(model)):
        digest = _digest(model)
        _CACHE[model] = found, digest
    return digest


def _writes(model: torch.nn.Module) -> int:
    return sum(0 if p.is_inference() else p._version for p in model.parameters())


def _digest(model: torch.nn.Module) -> str:
    digest = hashlib.blake2b(digest_size=16)
    # torch.compile puts `_orig_mod.` into the names of what it wraps.
    named = ((name.replace("_orig_mod.", ""), p) for name, p in model.named_parameters())
    for name, tensor in sorted(named, key=lambda pair: pair[0]):
        digest.update(f"{name}:{tuple(tensor.shape)}:".encode())
        digest.update(_tensor_summary(tensor.detach()))
    return digest.hexdigest()


def _tensor_summary(tensor: torch.Tensor) -> bytes:
    """Return the sum and the samples of one tensor's bf16 bit patterns."""
    flat = tensor.reshape(-1)
    total = sum(int(_bits(part).sum(dtype=torch.int64).item()) for part in flat.split(1 << 24))
    step = max(1, flat.numel() // SAMPLES)
    samples = _bits(flat[::step]).cpu().numpy().astype("<i2")
    return total.to_bytes(16, "little", signed=True) + samples.tobytes()


def _bits(values: torch.Tensor) -> torch.Tensor:
    if values.element_size() == 1:  # fp8 and int8 weights have no bf16 rounding to undo
        return values.view(torch.uint8).to(torch.int16)
    return values.to(torch.bfloat16).view(torch.int16)


def tokenizer_digest(tokenizer: Any) -> str:
    """Return the 128-bit hex digest of what decides token ids: the fast tokenizer's own JSON."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        state = json.loads(backend.to_str())
        # Truncation and padding are call settings that libraries flip at run time.
        content = {key: state[key] for key in sorted(state) if key not in ("truncation", "padding")}
    else:
        content = {"vocabulary": sorted(tokenizer.get_vocab().items())}
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
