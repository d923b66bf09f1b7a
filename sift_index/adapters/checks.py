"""What must hold before a model runs under a plan; everything else would be wrong in silence."""

from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from sift_index.errors import PlanError
from sift_index.fingerprints import served_fingerprint
from sift_index.formats.fingerprint import check_serve
from sift_index.models.support import check_supported
from sift_index.runtime.plan import PromptPlan

# Implementations of attention that transformers itself brings, by name or beginning.
KNOWN = ("sdpa", "eager", "flex_attention")
KNOWN_BEGINNINGS = ("flash_attention", "kernels-community/")

# The places of a model's attention modules: looked for once, since experts are tens of thousands.
_attentions: "WeakKeyDictionary[torch.nn.Module, list[str]]" = WeakKeyDictionary()


def check_plan(model: Any, plan: PromptPlan) -> None:
    """Raise when a plan was composed from an index of another model, or has nothing to run."""
    if not plan.length:
        raise PlanError(
            "expected a prompt of at least one token, found an empty plan; compose it from "
            "segments that hold tokens, such as a prefix and a question"
        )
    check_supported(model.config)
    check_serve(plan.fingerprint, served_fingerprint(plan.fingerprint, model, None))
    largest = int(plan.tokens.max())
    if largest >= model.config.vocab_size:
        raise PlanError(
            f"expected token ids below the vocabulary size {model.config.vocab_size}, found "
            f"{largest}; tokenise with this model's tokenizer"
        )


def check_unpatched(model: Any, ours: str) -> None:
    """Raise PlanError where another library computes the model's attention by its own code.

    It would not ask for the plan. ours: the name under which this project's attention is known.
    """
    name = str(model.config._attn_implementation)
    if name not in (ours, *KNOWN) and not name.startswith(KNOWN_BEGINNINGS):
        raise PlanError(
            f"expected an attention implementation of transformers ({', '.join(KNOWN)}, "
            f"flash_attention_…), found {name!r}, registered by another library; load the model "
            "with attn_implementation='sdpa'"
        )
    modules, layers = _attention_modules(model), int(model.config.num_hidden_layers)
    if len(modules) != layers:
        raise PlanError(
            f"expected an attention layer of transformers in each of {layers} layers, found "
            f"{len(modules)}; undo what replaced the others, or load the model anew"
        )
    for number, module in enumerate(modules):
        place = _foreign_code(module)
        if place:
            raise PlanError(
                f"expected attention layers of transformers, found layer {number} "
                f"({type(module).__name__}) replaced by {place}; undo what patched the model, or "
                "load it anew"
            )


def check_cache(cache: Any) -> None:
    """Raise PlanError unless a KV cache keeps every key as it was, one a token, in order."""
    if cache is None:
        return
    found = type(cache).__name__
    if type(cache) is DynamicCache:
        others = {type(one).__name__ for one in cache.layers if type(one) is not DynamicLayer}
        if not others:
            return
        found = f"one with layers of {', '.join(sorted(others))}"
    raise PlanError(
        f"expected a DynamicCache or none, found {found}: its keys are not laid out one per token "
        "in prompt order, as they were computed; leave cache_implementation out"
    )


def check_cached_prompts(cache: Any, batch: int) -> None:
    """Raise PlanError where a cache that holds keys has another number of prompts than a call."""
    held = int(cache.layers[0].keys.shape[0])
    if held != batch:
        raise PlanError(
            f"expected a cache of {batch} prompts, as many as the call has, found one of {held}; "
            "pass the cache of these prompts"
        )


def _attention_modules(model: Any) -> list[Any]:
    """Return the modules that compute attention, in the order of layers, as they are now."""
    if model not in _attentions:
        _attentions[model] = [
            name
            for name, module in model.named_modules()
            if hasattr(module, "layer_idx") and hasattr(module, "o_proj")
        ]
    return [module for name in _attentions[model] if (module := _submodule(model, name))]


def _submodule(model: Any, name: str) -> Any | None:
    """Return a module by name, None where somebody has taken it out."""
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None


def _foreign_code(module: Any) -> str | None:
    """Return where a module's forward comes from, if not from transformers.

    accelerate, which places layers on devices, wraps the original and keeps it.
    """
    replaced = vars(module).get("forward")
    if hasattr(module, "_hf_hook"):
        replaced = getattr(module, "_old_forward", None)
    forward = type(module).forward if replaced is None else replaced
    place = str(getattr(forward, "__module__", type(forward).__module__))
    return None if place.startswith("transformers.") else place
