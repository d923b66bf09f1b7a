"""transformers: run a model's prefill sparsely under a plan.

    with sift_attention(model, plan):
        model.generate(plan.input_ids, max_new_tokens=32)

    with sift_attention(model, plans):
        model.generate(**batch_inputs(plans, tokenizer.pad_token_id), max_new_tokens=32)

    sift_generate(model, plan, max_new_tokens=32)

Rows of the prompt are sparse, whatever the chunks it arrives in; rows behind it are dense, so
decoding is ordinary and the KV cache is complete.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from numbers import Integral
from typing import Any

import torch

from sift_index.adapters.checks import check_cache, check_plan, check_unpatched
from sift_index.adapters.compiled import compiled_pieces
from sift_index.adapters.hf_attention import NAME, attention_handler
from sift_index.adapters.hf_calls import cache_argument, trim_cache, unwrapped
from sift_index.adapters.prompt_rows import PlannedPrompt
from sift_index.adapters.sparse_handler import SparseHandler
from sift_index.errors import PlanError
from sift_index.models.support import check_supported
from sift_index.runtime.crossover import Crossover, counters, find_crossover
from sift_index.runtime.plan import PromptPlan

Plans = PromptPlan | Sequence[PromptPlan]
# A table, its path, `auto`, `off`, or None for $SIFT_CROSSOVER, else `auto`.
CrossoverChoice = Crossover | str | os.PathLike[str] | None


@contextmanager
def sift_attention(
    model: Any, plans: Plans, compile: bool = False, crossover: CrossoverChoice = None
) -> Iterator[None]:
    """Compute prompts' attention only where their plans mark it, inside the `with` block.

    Works around `model(...)` and `model.generate(...)`, with a growing cache (DynamicCache) or
    none. A batch takes a plan for each prompt, padding in front; where there are more rows than
    plans, each plan counts for equally many in a row, as beams and `num_return_sequences` lay them
    out. compile: the model's pointwise parts run compiled (`compiled_pieces`). crossover: prompts
    for which sparse does not pay on this GPU run dense (`find_crossover`). Raises
    UnsupportedModelError, FingerprintMismatchError for another model, UsageError for a crossover
    that is none, and PlanError when the tokens, batch, padding or cache do not fit the plans, or
    where another library has replaced the model's attention.
    """
    several = _several(plans)
    model = unwrapped(model)
    check_supported(model.config)
    # In front of its weights: those of a layer that was replaced are others, and say less.
    check_unpatched(model, NAME)
    for plan in several:
        check_plan(model, plan)
    handler = SparseHandler(_planned(several, model, crossover))
    # The inner model is what everybody calls in the end: `model(...)`, `generate`, and those who
    # want hidden states.
    inner = model.base_model
    with ExitStack() as stack:
        stack.enter_context(inner.register_forward_pre_hook(handler.begin, with_kwargs=True))
        stack.enter_context(inner.register_forward_hook(handler.end, always_call=True))
        if compile:
            stack.enter_context(compiled_pieces(model))
        stack.enter_context(attention_handler(model, handler))
        yield


def sift_generate(
    model: Any,
    plans: Plans,
    *,
    pad_token_id: int | None = None,
    quality: str | int | None = None,
    compile: bool = False,
    crossover: CrossoverChoice = None,
    **options: Any,
) -> Any:
    """Generate from one prompt or several under their plans; return what `generate` returns.

    options: of `generate`, as max_new_tokens or prefill_chunk_size. past_key_values: a DynamicCache
    that may hold the prompts' first tokens already, wherever they end; only the rest is computed. A
    cache of a whole prompt loses its last token, whose logits are wanted. pad_token_id: for several
    plans; default: the model's. quality: `best`, `balanced`, `fast` or a level, in place of the
    plans' own. compile, crossover, errors: as `sift_attention`.
    """
    several = _several(plans)
    if quality is not None:
        several = [plan.at(quality) for plan in several]
    pad = model.generation_config.pad_token_id if pad_token_id is None else pad_token_id
    inputs = batch_inputs(several, 0 if pad is None and len(several) == 1 else pad)
    device = model.get_input_embeddings().weight.device
    placed = {name: value.to(device) for name, value in inputs.items()}
    name = cache_argument(model)
    cache = options.pop("past_key_values", options.pop("cache", None))
    if cache is not None:
        check_cache(cache)
        _leave_a_token(cache, placed["input_ids"].shape[1])
        options[name] = cache
    if pad is not None:
        options["pad_token_id"] = pad
    with sift_attention(model, several, compile=compile, crossover=crossover):
        return model.generate(**placed, **options)


def _several(plans: Plans) -> list[PromptPlan]:
    several = [plans] if isinstance(plans, PromptPlan) else _listed(plans)
    if not several:
        raise PlanError("expected at least one plan, found none; compose the prompts of the batch")
    for plan in several:
        if not isinstance(plan, PromptPlan):
            raise PlanError(
                f"expected plans, found {type(plan).__name__}; make one of each prompt with "
                "`SiftIndex.compose`"
            )
    return several


def _listed(plans: Any) -> list[Any]:
    return list(plans) if isinstance(plans, Iterable) else [plans]


def _planned(
    plans: Sequence[PromptPlan], model: Any, choice: CrossoverChoice
) -> list[PlannedPrompt]:
    """Decide for each prompt how it runs, and count it."""
    table = find_crossover(choice, next(model.parameters()).device)
    if table is None:
        return [PlannedPrompt(plan) for plan in plans]
    decisions = [table.decide(plan.sparse) for plan in plans]
    for decision in decisions:
        counters.count(decision)
    return [PlannedPrompt(plan, one.dense) for plan, one in zip(plans, decisions, strict=True)]


def _leave_a_token(cache: Any, tokens: int) -> None:
    """Cut a cache so that at least the prompt's last token is left to run."""
    cached = int(cache.get_seq_length())
    if cached > tokens:
        raise PlanError(
            f"expected a cache of the prompt's beginning, at most {tokens} tokens, found one of "
            f"{cached}; pass a cache of this prompt alone"
        )
    trim_cache(cache, tokens - 1)


def batch_inputs(plans: Plans, pad_token_id: int | None) -> dict[str, torch.Tensor]:
    """Return `input_ids` and `attention_mask`, int64 [plans, longest], padded on the left.

    For `generate`, which works positions out from the mask. A plain call of a model does not:
    there, also pass `position_ids`, `attention_mask.cumsum(-1) - 1` where that is not negative.
    pad_token_id: any token of the vocabulary, since nothing attends to it; None is refused with
    PlanError, as is what the vocabulary lacks, where it is needed, and a batch without plans.
    """
    several = _several(plans)
    if pad_token_id is None:
        raise PlanError(
            "expected a pad_token_id, found None: this tokenizer has no token for padding; pass "
            "tokenizer.eos_token_id, which is masked all the same"
        )
    longest = max(plan.length for plan in several)
    if any(plan.length < longest for plan in several):
        _check_padding(pad_token_id, several[0])
    ids = torch.full((len(several), longest), pad_token_id, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, plan in enumerate(several):
        ids[row, longest - plan.length :] = plan.tokens[0]
        mask[row, longest - plan.length :] = 1
    return {"input_ids": ids, "attention_mask": mask}


def _check_padding(token: object, plan: PromptPlan) -> None:
    """Raise PlanError for a token that the plan's model does not know."""
    size = int(plan.fingerprint.serve["architecture"]["vocab_size"])
    if not isinstance(token, Integral) or not 0 <= int(token) < size:
        raise PlanError(
            f"expected a pad_token_id of 0 to {size - 1}, found {token!r}; pass a token of the "
            "vocabulary, as tokenizer.eos_token_id, which is masked all the same"
        )
