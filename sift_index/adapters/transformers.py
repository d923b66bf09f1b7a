"""transformers: run a model's prefill sparsely under a plan.

    with sift_attention(model, plan):
        model.generate(plan.input_ids, max_new_tokens=32)

Rows of the prompt are sparse, whatever the chunks it arrives in; rows behind it are dense, so
decoding is ordinary and the KV cache is complete.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import Cache, DynamicCache

from sift_index.adapters.hf_attention import active_handler, attention_handler
from sift_index.errors import PlanError
from sift_index.fingerprints import served_fingerprint
from sift_index.formats.fingerprint import check_serve
from sift_index.kernels.api import DevicePlan, attend, device_plan
from sift_index.models.support import check_supported
from sift_index.runtime.plan import PromptPlan


@contextmanager
def sift_attention(model: Any, plan: PromptPlan) -> Iterator[None]:
    """Compute the prompt's attention only where `plan` marks it, inside the `with` block.

    Works around `model(...)` and `model.generate(...)`, one prompt at a time, with a growing
    cache (DynamicCache) or none. Raises UnsupportedModelError, FingerprintMismatchError for
    another model, and PlanError when the tokens, batch or cache do not fit the plan.
    """
    check_plan(model, plan)
    handler = _SparseHandler(plan)
    hook = model.register_forward_pre_hook(handler.begin, with_kwargs=True)
    try:
        with attention_handler(model, handler):
            yield
    finally:
        hook.remove()


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
    """Follows the model's calls through one prompt and attends under the plan."""

    def __init__(self, plan: PromptPlan) -> None:
        self._plan = plan
        self._row_start = 0
        # Decoded once, not layer by layer; a model may be spread over several devices.
        self._decoded: dict[torch.device, DevicePlan] = {}

    def begin(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before each forward: where its rows start, and that they are the plan's tokens.

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
        self._row_start = int(cache.get_seq_length()) if cache is not None else 0
        ids = kwargs.get("input_ids", args[0] if args else None)
        if isinstance(ids, torch.Tensor):
            self._check_ids(ids)

    def _check_ids(self, ids: torch.Tensor) -> None:
        if ids.shape[0] != 1:
            raise PlanError(
                f"expected one prompt per call, found a batch of {ids.shape[0]} (beams and "
                "num_return_sequences make one too)"
            )
        expected = self._plan.ids[self._row_start : self._row_start + ids.shape[1]]
        found = tuple(ids[0, : len(expected)].tolist())
        if found != expected:
            at = next(i for i, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b)
            raise PlanError(
                f"expected the plan's tokens, found token {found[at]} at position "
                f"{self._row_start + at} where the plan has {expected[at]}; compose this prompt"
            )

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attend one layer's rows: q [heads, R, D], k and v [kv_heads, N, D]."""
        if k.shape[1] != self._row_start + q.shape[1]:
            raise PlanError(
                f"expected {self._row_start + q.shape[1]} keys (cached and new), found "
                f"{k.shape[1]}; pass a DynamicCache that holds this prompt from its start"
            )
        if q.device not in self._decoded:
            self._decoded[q.device] = device_plan(self._plan.sparse, q.device)
        return attend(q, k, v, self._decoded[q.device], layer, self._row_start, scale)
