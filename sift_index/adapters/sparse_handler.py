"""What follows a model through its calls: which prompt, which rows, and their attention."""

import threading
from collections.abc import Sequence
from typing import Any

import torch

from sift_index.adapters.blocks import uncompiled
from sift_index.adapters.checks import check_cache, check_cached_prompts
from sift_index.adapters.hf_attention import active_handler
from sift_index.adapters.hf_calls import arguments_of
from sift_index.adapters.packed_prompts import batch_of, packed_keys, packed_queries
from sift_index.adapters.prompt_rows import PlannedPrompt, PromptRows, padding
from sift_index.errors import PlanError
from sift_index.kernels.api import PlanBatch, attend_batch


class _Call(threading.local):
    """The call that a thread is in: others may run the same prompts at the same time.

    batches: tables of the prompts that attend together, by device and step of their keys.
    """

    def __init__(self) -> None:
        self.column = 0
        self.rows: list[PromptRows] = []
        self.batches: dict[tuple[torch.device, int], PlanBatch] = {}


class SparseHandler:
    """Follows the model's calls through its prompts and attends under their plans."""

    def __init__(self, prompts: Sequence[PlannedPrompt]) -> None:
        self._prompts = prompts
        self._call = _Call()

    @uncompiled
    def begin(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> None:
        """Before each forward: where its rows start, and that they are the plans' tokens.

        A hook belongs to the model, not to a thread: calls under another plan are not ours. They
        come without `kwargs` where our block begins or ends while torch goes through the hooks.
        """
        if active_handler(module.config) is not self:
            return
        given = arguments_of(module, args, kwargs or {})
        cache = given.get("cache", given.get("past_key_values"))
        check_cache(cache)
        self._call.column = int(cache.get_seq_length()) if cache is not None else 0
        self._call.rows, self._call.batches = [], {}
        ids = given.get("input_ids")
        tokens = given.get("inputs_embeds") if ids is None else ids
        if tokens is None:
            return  # the model says what it lacks
        if tokens.ndim < 2:
            raise PlanError(
                f"expected tokens of shape [batch, tokens], found {list(tokens.shape)}; pass "
                "plan.input_ids as it is"
            )
        if self._call.column:
            check_cached_prompts(cache, tokens.shape[0])
        self._begin_rows(ids, tokens.shape[:2], given.get("attention_mask"))

    @uncompiled
    def end(self, module: Any, *_: Any) -> None:
        """After each forward, failed ones too: the next attention is no longer this call's.

        Unless the module trains: with gradient checkpointing its layers run again on the way back.
        """
        if not (module.training and torch.is_grad_enabled()):
            self._call.rows, self._call.batches = [], {}

    def _begin_rows(
        self, ids: torch.Tensor | None, shape: Sequence[int], mask: torch.Tensor | None
    ) -> None:
        batch, columns = shape
        call = self._call
        call.rows = self._placed(padding(mask, batch, call.column, columns), columns)
        if ids is not None:  # embeddings do not say which tokens they are
            for number, rows in enumerate(call.rows):
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
            PromptRows(self._prompts[row // each], pad, self._call.column, columns)
            for row, pad in enumerate(pads)
        ]

    def attend_batch(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attend one layer: q [B, heads, R, D], k and v [B, kv_heads, N, D] to [B, R, heads, D].

        Prompts that run sparsely attend together, decoding apart; padding is zero.
        """
        batch, heads, columns, dim = q.shape
        call = self._call
        if k.shape[2] != call.column + columns:
            raise PlanError(
                f"expected {call.column + columns} keys (cached and new), found {k.shape[2]}; "
                "pass a DynamicCache that holds this prompt from its start"
            )
        if len(call.rows) != batch:
            raise PlanError(
                f"expected the {len(call.rows)} prompts the model was called with, found {batch}; "
                "call this model, not one of its layers or another model that shares its config"
            )
        if batch == 1 and not call.rows[0].skipped:
            return call.rows[0].attend(layer, q[0], k[0], v[0], scale)[None].contiguous()
        together = [
            number for number, some in enumerate(call.rows) if some.count and not some.prompt.dense
        ]
        if columns == 1 or len(together) < 2:
            together, out = [], q.new_empty(batch, columns, heads, dim)
        else:
            out = self._attend_together(together, layer, q, k, v, scale)
        for number, some in enumerate(call.rows):
            out[number, : some.skipped] = 0
            if number not in together:
                alone = some.attend(layer, q[number], k[number], v[number], scale)
                out[number, some.skipped :] = alone
        return out

    def _attend_together(
        self,
        numbers: list[int],
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Attend some prompts of a batch at once; rows of the others are as the memory was."""
        call, keys = self._call, packed_keys(k, v)
        key = (q.device, keys.step)
        if key not in call.batches:
            call.batches[key] = batch_of(call.rows, numbers, keys.step, q.device)
        found = attend_batch(packed_queries(q), keys.k, keys.v, call.batches[key], layer, scale)
        batch, heads, columns, dim = q.shape
        return found.transpose(0, 1).view(batch, columns, heads, dim)
