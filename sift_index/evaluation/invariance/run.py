"""Measuring both claims: each document alone, then each prompt, one dense forward each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch

from sift_index.errors import UsageError
from sift_index.evaluation.invariance.measures import (
    Invariance,
    InvarianceReport,
    combine,
    cross_recall,
    high_cells,
    layer_means,
    local_recall,
    overall_means,
    pooled_means,
)
from sift_index.evaluation.invariance.sums import LayerView, Limits, observe, span_sums
from sift_index.evaluation.methods.treatment import spans_of
from sift_index.evaluation.questions import Question
from sift_index.formats.masks import DocumentMasks
from sift_index.kernels.api import TILE, MaskLayout, SparsePlan
from sift_index.kernels.ca_list import ca_list
from sift_index.models.loading import LoadedModel
from sift_index.prompts import PromptWriter, prompt_ids
from sift_index.runtime.masks import span_mask
from sift_index.selection.extractor import Extractor
from sift_index.selection.policy import PaperPolicy, Policy

PAPER = PaperPolicy()
PAPER_LIMITS = Limits(PAPER.alpha, PAPER.beta)
REMEMBERED = 256  # documents that come again, as in questions about one corpus


class Predictor(Protocol):
    """Predicts from a document alone which of its pages later documents attend to."""

    @property
    def layout(self) -> MaskLayout:
        """How the bits of its masks map to keys."""

    def extract(self, ids: Sequence[int]) -> DocumentMasks:
        """Return the masks of one document."""


@dataclass(frozen=True)
class _Prompt:
    """Token ids of one prompt and [start, stop) of its documents behind the prefix."""

    ids: list[int]
    spans: list[tuple[int, int]]

    @property
    def documents(self) -> list[tuple[int, ...]]:
        """Token ids of every document."""
        return [tuple(self.ids[start:stop]) for start, stop in self.spans]

    def later_rows(self) -> torch.Tensor:
        """Return float32 [length]: rows of later documents that could see each key; 0 for glue."""
        rows = torch.zeros(len(self.ids))
        for start, stop in self.spans:
            rows[start:stop] = sum(b - a for a, b in self.spans if a >= stop)
        return rows


def measure_invariance(
    loaded: LoadedModel,
    writer: PromptWriter,
    questions: Sequence[Question],
    policies: Mapping[str, Policy],
    progress: Callable[[int], None] = lambda done: None,
    limits: Limits = PAPER_LIMITS,
) -> InvarianceReport:
    """Measure both claims on the prompts of questions, claim 2 for each policy.

    `progress` is told how many questions are done. UsageError names a question whose prompt has
    fewer than 2 documents behind the prefix, or does not fit the model's context.
    """
    prefix = writer.prefix()
    predictors = {name: Extractor(loaded, policy, prefix) for name, policy in policies.items()}
    return measure_predictors(loaded, writer, questions, predictors, progress, limits)


def measure_predictors(
    loaded: LoadedModel,
    writer: PromptWriter,
    questions: Sequence[Question],
    predictors: Mapping[str, Predictor],
    progress: Callable[[int], None] = lambda done: None,
    limits: Limits = PAPER_LIMITS,
) -> InvarianceReport:
    """Do as `measure_invariance` with anything that predicts pages from a document alone."""
    if not questions:
        raise UsageError("expected at least one question to measure, found none")
    prompts = [_prompt_of(loaded, writer, question) for question in questions]
    meter = _Meter(loaded, writer.prefix(), predictors, limits)
    found = []
    for number, prompt in enumerate(prompts, 1):
        found.append(meter.measure(prompt))
        progress(number)
    return InvarianceReport(
        layers=layer_means(found),
        overall=overall_means(found),
        pooled=pooled_means(found),
        prompts=len(prompts),
        documents=sum(len(prompt.spans) for prompt in prompts),
        la_documents=sum(len(ids) > TILE for prompt in prompts for ids in prompt.documents[1:]),
        limits=limits,
    )


class _Meter:
    """Measures prompts one by one; what is known of a document alone is kept for the next."""

    def __init__(
        self,
        loaded: LoadedModel,
        prefix: list[int],
        predictors: Mapping[str, Predictor],
        limits: Limits,
    ) -> None:
        self._loaded, self._prefix, self._limits = loaded, prefix, limits
        self._predictors = predictors
        self._high_alone = lru_cache(REMEMBERED)(self._run_alone)
        self._masks = lru_cache(REMEMBERED * max(1, len(predictors)))(self._extract)

    def measure(self, prompt: _Prompt) -> Invariance[torch.Tensor]:
        """Return a prompt's counts, float64 [layers, 2, heads] each, on the CPU."""
        alone = [self._high_alone(ids) for ids in prompt.documents[1:]]
        plans = {name: self._plan(name, prompt) for name in self._predictors}
        rows = prompt.later_rows().to(self._loaded.device)

        def reduce(layer: int, view: LayerView) -> Invariance[torch.Tensor]:
            high_alone = torch.cat([document[layer] for document in alone], -1)
            kept = {name: ca_list(plan, layer).kept for name, plan in plans.items()}
            return _layer_counts(view, prompt.spans, high_alone, kept, rows, self._limits)

        layers = observe(self._loaded, prompt.ids, reduce)
        return combine(layers, lambda values: torch.stack(values).cpu())

    def _run_alone(self, ids: tuple[int, ...]) -> list[torch.Tensor]:
        """Return by layer bool [heads, T (T - 1) / 2]: tiles left of the diagonal that are high."""
        shape, start = self._loaded.geometry, len(self._prefix)
        if len(ids) <= TILE:
            none = torch.zeros(shape.heads, 0, dtype=torch.bool, device=self._loaded.device)
            return [none] * shape.layers
        stop = start + len(ids)
        return observe(
            self._loaded,
            [*self._prefix, *ids],
            lambda _, view: span_sums(view, start, start, stop, self._limits).tiles[0] > 0,
        )

    def _extract(self, name: str, ids: tuple[int, ...]) -> DocumentMasks:
        return self._predictors[name].extract(ids)

    def _plan(self, name: str, prompt: _Prompt) -> SparsePlan:
        # No later document sees the last one: its masks are not made.
        spans = tuple(
            span_mask(self._masks(name, ids), start)
            for ids, (start, _) in zip(prompt.documents[:-1], prompt.spans[:-1], strict=True)
        )
        plan = SparsePlan(self._predictors[name].layout, len(prompt.ids), spans)
        return plan.to(self._loaded.device)


def _layer_counts(
    view: LayerView,
    spans: list[tuple[int, int]],
    high_alone: torch.Tensor,
    kept: Mapping[str, torch.Tensor],
    rows: torch.Tensor,
    limits: Limits,
) -> Invariance[torch.Tensor]:
    """Compare one layer of a prompt with what was predicted; counts stay on the device."""
    first = spans[0][0]
    cross = torch.zeros(2, *view.lse.shape, device=rows.device)
    tiles = []
    for start, stop in spans[1:]:
        sums = span_sums(view, first, start, stop, limits)
        cross[..., first:start] += sums.cross
        tiles.append(sums.tiles)
    high, mass = cross * (rows > 0)  # glue between documents is no document's key
    return Invariance(
        la=local_recall(high_alone, *torch.cat(tiles, -1)),
        ca_high=high_cells(high, rows),
        ca={name: cross_recall(keys, high, mass, rows) for name, keys in kept.items()},
    )


def _prompt_of(loaded: LoadedModel, writer: PromptWriter, question: Question) -> _Prompt:
    segments = writer.prompt(question.documents, question.question)
    ids = prompt_ids(segments)
    spans = spans_of(segments)
    if len(spans) < 2:
        raise UsageError(
            f"question {question.id}: expected at least 2 documents behind the prefix, "
            f"found {len(spans)}; leave the question out"
        )
    if len(ids) > loaded.geometry.context:
        raise UsageError(
            f"question {question.id}: expected at most {loaded.geometry.context} tokens (the "
            f"model's context), found {len(ids)}; use fewer documents"
        )
    return _Prompt(ids, spans)
