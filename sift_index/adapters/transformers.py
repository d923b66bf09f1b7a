"""transformers: run a model's prefill sparsely under a plan.

    with sift_attention(model, plan):
        model.generate(plan.input_ids, max_new_tokens=32)

    with sift_attention(model, plans):
        model.generate(**batch_inputs(plans, tokenizer.pad_token_id), max_new_tokens=32)

Rows of the prompt are sparse, whatever the chunks it arrives in; rows behind it are dense, so
decoding is ordinary and the KV cache is complete.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import Cache, DynamicCache

from sift_index.adapters.hf_attention import active_handler, attention_handler
from sift_index.adapters.prompt_rows import PlannedPrompt, PromptRows, padding
from sift_index.errors import PlanError
from sift_index.fingerprints import served_fingerprint
from sift_index.formats.fingerprint import check_serve
from sift_index.models.support import check_supported
from sift_index.runtime.plan import PromptPlan


@contextmanager
def sift_attention(model: Any, plans: PromptPlan | Sequence[PromptPlan]) -> Iterator[None]:
    """Compute prompts' attention only where their plans mark it, inside the `with` block.

    Works around `model(...)` and `model.generate(...)`, with a growing cache (DynamicCache) or
    none. A batch takes a plan for each prompt, padding in front; where there are more rows than
    plans, each plan counts for equally many in a row, as beams and `num_return_sequences` lay them
    out. Raises UnsupportedModelError, FingerprintMismatchError for another model, and PlanError
    when the tokens, batch, padding or cache do not fit the plans.
    """
    several = [plans] if isinstance(plans, PromptPlan) else list(plans)
    if not several:
        raise PlanError("expected at least one plan, found none; compose the prompts of the batch")
    for plan in several:
        check_plan(model, plan)
    handler = _SparseHandler(several)
    # The inner model is what everybody calls in the end: `model(...)`, `generate`, and those who
    # want hidden states.
    hook = model.base_model.register_forward_pre_hook(handler.begin, with_kwargs=True)
    try:
        with attention_handler(model, handler):
            yield
    finally:
        hook.remove()


def batch_inputs(
    plans: PromptPlan | Sequence[PromptPlan], pad_token_id: int | None
) -> dict[str, torch.Tensor]:
    """Return `input_ids` and `attention_mask`, int64 [plans, longest], padded on the left.

    For `generate`, which works positions out from the mask. A plain call of a model does not:
    there, also pass `position_ids`, `attention_mask.cumsum(-1) - 1` where that is not negative.
    pad_token_id: any token of the vocabulary, since nothing attends to it; None is refused with
    PlanError, as is a batch without plans.
    """
    several = [plans] if isinstance(plans, PromptPlan) else list(plans)
    if not several:
        raise PlanError("expected at least one plan, found none; compose the prompts of the batch")
    if pad_token_id is None:
        raise PlanError(
            "expected a pad_token_id, found None: this tokenizer has no token for padding; pass "
            "tokenizer.eos_token_id, which is masked all the same"
        )
    longest = max(plan.length for plan in several)
    ids = torch.full((len(several), longest), pad_token_id, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, plan in enumerate(several):
        ids[row, longest - plan.length :] = plan.input_ids[0]
        mask[row, longest - plan.length :] = 1
    return {"input_ids": ids, "attention_mask": mask}


def check_plan(model: Any, plan: PromptPlan) -> None:
    """Raise when a plan was composed from an index of another model."""
    check_supported(model.config)
    check_serve(plan.fingerprint, served_fingerprint(plan.fingerprint, model, None))
    if max(plan.ids, default=0) >= model.config.vocab_size:
        raise PlanError(
            f"expected token ids below the vocabulary size {model.config.vocab_size}, found "
            f"{max(plan.ids)}; tokenise with this model's tokenizer"
        )


class _SparseHandler:
    """Follows the model's calls through its prompts and attends under their plans."""

    def __init__(self, plans: Sequence[PromptPlan]) -> None:
        self._prompts = [PlannedPrompt(plan) for plan in plans]
        self._column = 0
        self._rows: list[PromptRows] = []

    def begin(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before each forward: where its rows start, and that they are the plans' tokens.

        A hook belongs to the model, not to a thread: calls under another plan are not ours.
        """
        if active_handler(module.config) is not self:
            return
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        if isinstance(cache, Cache) and type(cache) is not DynamicCache:
            raise PlanError(
                f"expected a DynamicCache or none, found {type(cache).__name__}: its keys are not "
                "laid out one per token in prompt order"
            )
        self._column = int(cache.get_seq_length()) if cache is not None else 0
        self._rows = []
        ids = kwargs.get("input_ids", args[0] if args else None)
        tokens = kwargs.get("inputs_embeds") if ids is None else ids
        if tokens is not None:  # else the model says what it lacks
            self._begin_rows(ids, tokens.shape[:2], kwargs.get("attention_mask"))

    def _begin_rows(
        self, ids: torch.Tensor | None, shape: Sequence[int], mask: torch.Tensor | None
    ) -> None:
        batch, columns = shape
        self._rows = self._placed(padding(mask, batch, self._column, columns), columns)
        if ids is not None:  # embeddings do not say which tokens they are
            for number, rows in enumerate(self._rows):
                rows.check(ids[number], f"prompt {number}: " if batch > 1 else "")

    def _placed(self, pads: list[int], columns: int) -> list[PromptRows]:
        """Give each row of a batch its plan: rows of one plan follow each other."""
        each, rest = divmod(len(pads), len(self._prompts))
        if rest or not each:
            raise PlanError(
                f"expected a batch with a row for each of {len(self._prompts)} plans, or several, "
                f"found a batch of {len(pads)}; compose a plan for each prompt"
            )
        return [
            PromptRows(self._prompts[row // each], pad, self._column, columns)
            for row, pad in enumerate(pads)
        ]

    def attend_batch(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attend one layer: q [B, heads, R, D], k and v [B, kv_heads, N, D] to [B, R, heads, D]."""
        batch, heads, columns, dim = q.shape
        if k.shape[2] != self._column + columns:
            raise PlanError(
                f"expected {self._column + columns} keys (cached and new), found {k.shape[2]}; "
                "pass a DynamicCache that holds this prompt from its start"
            )
        if len(self._rows) != batch:
            raise PlanError(
                f"expected the {len(self._rows)} prompts the model was called with, found {batch}; "
                "call the model, not one of its layers"
            )
        if batch == 1 and not self._rows[0].skipped:
            return self._rows[0].attend(layer, q[0], k[0], v[0], scale)[None].contiguous()
        out = q.new_zeros(batch, columns, heads, dim)  # padding is zero
        for number, some in enumerate(self._rows):
            out[number, some.skipped :] = some.attend(layer, q[number], k[number], v[number], scale)
        return out
