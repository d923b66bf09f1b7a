"""Measuring thresholds: dense answers and document statistics once, then masks for any numbers."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch

from sift_index.evaluation.forcing import prefilled
from sift_index.evaluation.methods.masks import OnTheSpot
from sift_index.evaluation.metrics import bootstrap, divergence
from sift_index.evaluation.run import ANSWER_TOKENS
from sift_index.formats.identity import document_key
from sift_index.formats.masks import DocumentMasks
from sift_index.models.loading import LoadedModel
from sift_index.prompts import Segment, prompt_ids
from sift_index.runtime.compose import split_ids
from sift_index.selection.extractor import DocumentScores, Extractor, rethreshold
from sift_index.selection.policy import ProbePolicy
from sift_index.selection.rules import LayerScores
from sift_index.tuning.search import ALL_ON, Measured, rounded

DENSITIES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9)
LOWEST, HIGHEST = 1e-9, 0.999  # a policy's thresholds are probabilities
Progress = Callable[[str, int, int], None]
Prompt = Sequence[Segment]


@dataclass(frozen=True, eq=False)
class Reference:
    """One prompt and what the dense model says to it.

    ids [1, length]; answer: greedy, at most 32 tokens; logits [len(answer), vocabulary].
    """

    prompt: Prompt
    ids: torch.Tensor
    answer: list[int]
    logits: torch.Tensor


def dense_reference(loaded: LoadedModel, prompt: Prompt) -> Reference:
    """Run a prompt densely and keep the greedy answer with its logits."""
    ids = torch.tensor([prompt_ids(prompt)], device=loaded.device)
    with prefilled(loaded.model, ids, nullcontext()) as opened:
        answer = opened.greedy(ANSWER_TOKENS)
        return Reference(prompt, ids, answer, opened.forced(answer))


class Bench:
    """Measures thresholds of a policy on prompts whose dense answers are known."""

    def __init__(
        self,
        loaded: LoadedModel,
        policy: ProbePolicy,
        prefix: list[int],
        references: Sequence[Reference],
        progress: Progress,
    ) -> None:
        """Score every distinct document of the prompts, each once."""
        self._loaded, self._policy, self._prefix = loaded, policy, prefix
        self._references, self._progress = references, progress
        self._extractor = Extractor(loaded, policy, prefix)
        self._scores = self._scored()

    @property
    def has_local(self) -> bool:
        """Whether any document is long enough to have an LA mask."""
        return any(layer.la is not None for s in self._scores.values() for layer in s.layers)

    @property
    def candidates(self) -> list[float]:
        """CA thresholds that mark about `DENSITIES` of the documents' keys."""
        return cross_candidates(self._scores.values(), self._policy.page_size)

    def measure(self, ca: float, la: float) -> Measured:
        """Return KL, top-1 and densities under two thresholds; `ca` may be `ALL_ON`."""
        method = OnTheSpot(
            self._loaded,
            self._extractor.layout,
            self._extractor.longest,
            lambda ids: self._masks(ids, ca, la),
            self._prefix,
        )
        stage = f"LA threshold {la:g}" if ca == ALL_ON else f"CA threshold {ca:g}"
        found = []
        for number, reference in enumerate(self._references, 1):
            found.append(self._compare(method, reference))
            self._progress(stage, number, len(self._references))
        kl, top1, ca_density, density = zip(*found, strict=True)
        mean = (float(np.mean(ca_density)), float(np.mean(density)))
        return Measured(bootstrap(kl), bootstrap(top1), *mean)

    def _compare(
        self, method: OnTheSpot, reference: Reference
    ) -> tuple[float, float, float, float]:
        treatment = method(reference.prompt)
        attention = treatment.attention(self._loaded.model)
        with prefilled(self._loaded.model, reference.ids, attention) as opened:
            kl, top1 = divergence(reference.logits, opened.forced(reference.answer))
        return kl, top1, treatment.density.ca.share, treatment.density.total.share

    def _masks(self, ids: Sequence[int], ca: float, la: float) -> DocumentMasks:
        scores = self._scores[document_key(ids)]
        if ca == ALL_ON:
            scores, ca = _all_on(scores), HIGHEST
        policy = replace(self._policy, ca_thresholds=(ca,), la_thresholds=(la,))
        return rethreshold(self._extractor.layout, scores, policy)

    def _scored(self) -> dict[bytes, DocumentScores]:
        pieces = {
            document_key(piece): piece
            for reference in self._references
            for segment in reference.prompt
            if not segment.glue
            for piece in split_ids(segment.ids, self._extractor.longest)
        }
        found = {}
        for number, (key, ids) in enumerate(pieces.items(), 1):
            found[key] = self._extractor.scores(ids)
            self._progress("scoring documents", number, len(pieces))
        return found


def cross_candidates(
    scores: Iterable[DocumentScores], page_size: int, densities: Sequence[float] = DENSITIES
) -> list[float]:
    """Return ascending CA thresholds that mark about the given shares of all keys.

    They are quantiles of the page scores of all layers and heads, a page counting its keys.
    """
    pages = [_pages(document, page_size) for document in scores]
    values, keys = (np.concatenate(part) for part in zip(*pages, strict=True))
    order = np.argsort(-values, kind="stable")
    share = np.cumsum(keys[order]) / keys.sum()
    places = np.minimum(np.searchsorted(share, densities), len(order) - 1)
    return sorted({rounded(min(max(v, LOWEST), HIGHEST)) for v in values[order][places].tolist()})


def _pages(document: DocumentScores, page_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and key counts of a document's pages, float64 [layers * heads * pages]."""
    scores = torch.stack([layer.ca for layer in document.layers]).double().cpu().numpy()
    keys = np.full(scores.shape[-1], float(page_size))
    keys[-1] = len(document.ids) - page_size * (len(keys) - 1)
    return scores.reshape(-1), np.broadcast_to(keys, scores.shape).reshape(-1)


def _all_on(scores: DocumentScores) -> DocumentScores:
    layers = (LayerScores(torch.ones_like(layer.ca), layer.la) for layer in scores.layers)
    return DocumentScores(scores.ids, tuple(layers))
