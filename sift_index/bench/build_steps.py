"""The steps of extraction, each with all that come before it, to be timed against each other."""

from collections.abc import Callable, Sequence
from itertools import chain

import torch

from sift_index.adapters.hf_attention import run_under
from sift_index.bench.clock import Run
from sift_index.errors import UsageError
from sift_index.formats.masks import DocumentMasks
from sift_index.models.loading import LoadedModel
from sift_index.selection.extractor import Extractor
from sift_index.selection.policy import Policy, ProbePolicy
from sift_index.selection.prefill import Observe, packed_documents, run_packed
from sift_index.selection.rules import ProbeBatch, ProbeRule

Ids = Sequence[int]


class Steps:
    """Runs of one batch: `rest`, `dense`, `ended`, `local`, `cross` and `build`.

    rest: the model without attention. dense: a packed prefill. ended: the same, as far as an
    extraction needs it. local, cross: with LA, then also with CA statistics. build: all of it.
    """

    def __init__(self, loaded: LoadedModel, policy: Policy, prefix: list[int]) -> None:
        """Run the probe texts; UsageError for a policy without a probe bank."""
        if not isinstance(policy, ProbePolicy):
            raise UsageError(
                f"expected a policy of rule 'probe' to time a build, found rule {policy.rule!r}; "
                "take --policy probe"
            )
        self._extractor = Extractor(loaded, policy, prefix)
        self._model, self._prefix = loaded.model, prefix

    @property
    def longest(self) -> int:
        """Tokens of the longest document."""
        return self._extractor.longest

    def masks(self, documents: Sequence[Ids]) -> list[DocumentMasks]:
        """Extract a batch."""
        return self._extractor.launch(documents).result()

    def runs(self, documents: Sequence[Ids], split: bool = True) -> dict[str, Run]:
        """Return what is timed, by name; without `split` only `dense` and `build`."""
        ends: dict[str, Run] = {
            "dense": lambda: run_packed(self._model, self._prefix, documents, _ignore),
            "build": lambda: self.masks(documents),
        }
        return {**self._parts(documents), **ends} if split else ends

    def _parts(self, documents: Sequence[Ids]) -> dict[str, Run]:
        rule = self._extractor.rule
        if not isinstance(rule, ProbeRule):
            raise UsageError("expected an extractor with a probe bank, found another rule")
        last = rule.last_layer

        def begun(observe: Callable[[ProbeBatch], Observe]) -> Run:
            def run() -> None:
                batch = rule.begin(packed_documents(self._prefix, documents))
                run_packed(self._model, self._prefix, documents, observe(batch), last)

            return run

        return {
            "rest": lambda: run_under(self._model, [*self._prefix, *chain(*documents)], _Nothing()),
            "ended": lambda: run_packed(self._model, self._prefix, documents, _ignore, last),
            "local": begun(_local),
            "cross": begun(_cross),
        }


class _Nothing:
    """No attention: the rest of the model works on zeros, at the same speed."""

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        return torch.zeros_like(q)


def _ignore(layer: int, q: object, k: object, lse: object, scale: float) -> None:
    return None


def _local(batch: ProbeBatch) -> Observe:
    def observe(
        layer: int, q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, scale: float
    ) -> None:
        batch.local(q, k, lse, scale)

    return observe


def _cross(batch: ProbeBatch) -> Observe:
    def observe(
        layer: int, q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, scale: float
    ) -> None:
        batch.score(layer, q, k, lse, scale)

    return observe
