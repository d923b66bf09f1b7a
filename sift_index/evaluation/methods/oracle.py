"""The oracle: masks from the prompt's own dense attention, instead of a guess made beforehand.

It shows what a policy's numbers would give if an index knew the prompts it will serve: later
documents' own rows stand where the probe bank stands in a build, everything else is the same.
One dense pass observes every layer in blocks of rows, memory O(heads * 128 * length).
"""

from collections.abc import Sequence
from typing import Any

import torch

from sift_index.adapters.hf_attention import run_under
from sift_index.evaluation.methods.masks import spot_fingerprint
from sift_index.evaluation.methods.treatment import Method, Sparse, spans_of
from sift_index.formats.masks import DocumentMasks
from sift_index.kernels.api import TILE, causal_attention
from sift_index.kernels.dense import grouped_scores
from sift_index.kernels.statistics import page_means
from sift_index.models.loading import LoadedModel
from sift_index.prompts import Segment, prompt_ids
from sift_index.runtime.compose import Composition
from sift_index.runtime.plan import PromptPlan
from sift_index.selection.extractor import check_weights, pack_masks
from sift_index.selection.policy import ProbePolicy
from sift_index.selection.rules import (
    LayerLevels,
    LayerScores,
    mask_layout,
    probe_levels,
    shared_scores,
    tile_scores,
    unmarked,
    weighted_scores,
)

Spans = Sequence[tuple[int, int]]


def oracle(loaded: LoadedModel, policy: ProbePolicy) -> Method:
    """Return the method whose masks are each prompt's own attention under a policy's numbers.

    Raises UsageError where the policy's head weights are those of a model of another shape.
    """
    check_weights(policy, loaded.geometry)
    return lambda prompt: Sparse(_plan(loaded, policy, prompt))


def _plan(loaded: LoadedModel, policy: ProbePolicy, prompt: Sequence[Segment]) -> PromptPlan:
    spans = spans_of(prompt)
    ids = prompt_ids(prompt)
    # Composing looks documents up in prompt order, so each occurrence gets the masks of its place.
    masks = iter(_observed(loaded, policy, ids, spans))
    parts = Composition(lambda key: next(masks), len(ids), lambda document: ())
    for segment in prompt:
        parts.add(segment)
    layout = mask_layout(policy, loaded.geometry)
    prefix = ids[: spans[0][0]] if spans else []
    return parts.plan(layout, spot_fingerprint(loaded, layout, prefix))


def _observed(
    loaded: LoadedModel, policy: ProbePolicy, ids: Sequence[int], spans: Spans
) -> list[DocumentMasks]:
    """Run the prompt densely and return the masks of each span."""
    observer = _Observer(spans, policy, loaded.geometry.layers)
    run_under(loaded.model, ids, observer)
    layout = mask_layout(policy, loaded.geometry)
    return [
        pack_masks(layout, ids[start:stop], [layer[index] for layer in observer.levels])
        for index, (start, stop) in enumerate(spans)
    ]


class _Observer:
    """Dense attention that keeps the levels of every span, layer by layer."""

    def __init__(self, spans: Spans, policy: ProbePolicy, layers: int) -> None:
        self.levels: list[list[LayerLevels]] = []
        self._spans = spans
        self._policy = policy
        self._skipped = layers - 1 if policy.skip_last_layer else layers

    def attend(self, layer: int, q: Any, k: Any, v: Any, scale: float) -> torch.Tensor:
        out, lse = causal_attention(q, k, v, scale)
        scores = prompt_scores(layer, q, k, lse, self._spans, self._policy, scale)
        if layer == self._skipped:
            scores = [unmarked(span) for span in scores]
        self.levels.append([probe_levels(span, self._policy) for span in scores])
        return out


def prompt_scores(
    layer: int,
    q: torch.Tensor,
    k: torch.Tensor,
    lse: torch.Tensor,
    spans: Spans,
    policy: ProbePolicy,
    scale: float,
) -> list[LayerScores]:
    """Return one layer's statistics of each span [start, stop), per mask head.

    q: [heads, L, D], k: [kv_heads, L, D] of the whole prompt, rotated; lse: [heads, L]. CA has the
    definition of `attention_of_later_spans`; LA is `local_scores` of the span's own rows, None up
    to `la_dense_tiles` tiles.
    """
    best = attention_of_later_spans(q, k, lse, spans, policy.window, scale)
    found = []
    for start, stop in spans:
        own = slice(start, stop)
        ca = weighted_scores(page_means(best[:, own], policy.page_size), layer, policy)
        la = tile_scores(q[:, own], k[:, own], lse[:, own], policy, scale)
        found.append(LayerScores(shared_scores(ca, k.shape[0], policy), la))
    return found


def attention_of_later_spans(
    q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, spans: Spans, window: int, scale: float
) -> torch.Tensor:
    """Return float32 [heads, L]: how much the rows of later spans attend to each key.

    Mean probability over windows of `window` rows that start where a later span starts (whole ones
    only; a span shorter than a window is one short window), maximum over windows. Keys without a
    later span, as the last span's, have 0. Arguments as in `prompt_scores`.
    """
    best = torch.zeros(q.shape[:2], device=q.device)
    for start, stop in spans[1:]:
        size = min(window, stop - start)
        end = start + (stop - start) // size * size
        for at in range(start, end, TILE):
            rows = slice(at, min(at + TILE, end))
            p = grouped_scores(q[:, rows], k[:, :start], scale)
            p.sub_(lse[:, rows, None]).exp_()
            means = p.unflatten(1, (-1, size)).mean(2).amax(1)
            best[:, :start] = torch.maximum(best[:, :start], means)
    return best
