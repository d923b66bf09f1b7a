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
    hook = model.register_forward_pre_hook(handler.begin, with_kwargs=True)
    try:
        with attention_handler(model, handler):
            yield
    finally:
        hook.remove()


def batch_inputs(plans: Sequence[PromptPlan], pad_token_id: int) -> dict[str, torch.Tensor]:
    """Return `input_ids` and `attention_mask`, int64 [plans, longest], padded on the left.

    For `generate`, which works positions out from the mask. A plain call of a model does not:
    there, also pass `position_ids`, `attention_mask.cumsum(-1) - 1` where that is not negative.
    """
    longest = max(plan.length for plan in plans)
    ids = torch.full((len(plans), longest), pad_token_id, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, plan in enumerate(plans):
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
        if isinstance(ids, torch.Tensor):
            self._begin_ids(ids, kwargs.get("attention_mask"))

    def _begin_ids(self, ids: torch.Tensor, mask: torch.Tensor | None) -> None:
        batch, columns = ids.shape
        self._rows = self._placed(padding(mask, batch, self._column, columns), columns)
        for number, (rows, row_ids) in enumerate(zip(self._rows, ids, strict=True)):
            rows.check(row_ids, f"prompt {number}: " if batch > 1 else "")

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
        # Without ids (embeddings given, or an inner module called) there is no padding to know.
        rows = self._rows or self._placed([0] * batch, columns)
        if batch == 1 and not rows[0].skipped:
            return rows[0].attend(layer, q[0], k[0], v[0], scale)[None].contiguous()
        out = q.new_zeros(batch, columns, heads, dim)  # padding is zero
        for number, some in enumerate(rows):
            out[number, some.skipped :] = some.attend(layer, q[number], k[number], v[number], scale)
        return out
