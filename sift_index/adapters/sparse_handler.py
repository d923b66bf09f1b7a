"""What follows a model through its calls: which prompt, which rows, and their attention."""

from collections.abc import Sequence
from typing import Any

import torch

from sift_index.adapters.checks import check_cache
from sift_index.adapters.hf_attention import active_handler
from sift_index.adapters.prompt_rows import PlannedPrompt, PromptRows, padding
from sift_index.errors import PlanError


class SparseHandler:
    """Follows the model's calls through its prompts and attends under their plans."""

    def __init__(self, prompts: Sequence[PlannedPrompt]) -> None:
        self._prompts = prompts
        self._column = 0
        self._rows: list[PromptRows] = []

    def begin(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before each forward: where its rows start, and that they are the plans' tokens.

        A hook belongs to the model, not to a thread: calls under another plan are not ours.
        """
        if active_handler(module.config) is not self:
            return
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        check_cache(cache)
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
