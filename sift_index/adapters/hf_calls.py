"""The few places where transformers versions differ in how a model is called."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any


def unwrapped(model: Any) -> Any:
    """Return the model that a wrapper of torch.compile holds; any other as it is."""
    return getattr(model, "_orig_mod", model)


def cache_argument(model: Any) -> str:
    """Return the name under which `model` takes its KV cache: `cache` or `past_key_values`."""
    names = inspect.signature(unwrapped(model).forward).parameters
    return "cache" if "cache" in names else "past_key_values"


def arguments_of(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a call's arguments by name, those too that were given by position."""
    if not args:
        return kwargs
    return {**dict(zip(inspect.signature(module.forward).parameters, args, strict=False)), **kwargs}


def cache_of(output: Any) -> Any:
    """Return the KV cache of a model output."""
    found = getattr(output, "cache", None)
    return output.past_key_values if found is None else found


def trim_cache(cache: Any, length: int) -> None:
    """Drop cached tokens behind `length`; versions agree only on how many to remove."""
    extra = int(cache.get_seq_length()) - length
    if extra > 0:
        cache.crop(-extra)


def stop_tokens(model: Any) -> set[int]:
    """Return the token ids that end a generation."""
    ids = getattr(model.generation_config, "eos_token_id", None)
    if ids is None:
        return set()
    return {ids} if isinstance(ids, int) else set(ids)
