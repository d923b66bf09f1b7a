"""Rules: one layer's Q and K of documents in, statistics and levels of pages and tiles out."""

from dataclasses import dataclass
from typing import Protocol

import torch

from sift_index.kernels.api import (
    TILE,
    MaskLayout,
    Packed,
    PackedStatistics,
    Sections,
    local_scores,
    nested_levels,
)
from sift_index.models.geometry import ModelGeometry
from sift_index.selection.policy import Policy, ProbePolicy
from sift_index.selection.probe_bank import ProbeBank


@dataclass(frozen=True)
class LayerScores:
    """float32 scores of one layer: ca [mask_heads, pages], la [mask_heads, triangle] or None."""

    ca: torch.Tensor
    la: torch.Tensor | None


@dataclass(frozen=True)
class LayerLevels:
    """uint8 levels of one layer: ca [mask_heads, pages], la [mask_heads, triangle] or None."""

    ca: torch.Tensor
    la: torch.Tensor | None


class BatchRule(Protocol):
    """Scores one batch of documents, layer by layer.

    pages, triangles: where the entries of each document lie in the scores.
    """

    pages: Sections
    triangles: Sections

    def score(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, scale: float
    ) -> LayerScores:
        """Return the statistics of one layer, as `pages` and `triangles` lay them out.

        q [heads, T, D] and k [kv_heads, T, D] of the packed sequence are rotated, lse is
        [heads, T].
        """


class Rule(Protocol):
    """Turns what a layer attends to into levels. last_layer: the last one that is scored."""

    last_layer: int

    @property
    def prefix(self) -> list[int]:
        """Token ids that documents run behind; empty when they run alone."""

    def begin(self, packed: Packed) -> BatchRule:
        """Prepare to score a batch of documents."""

    def levels(self, scores: LayerScores) -> LayerLevels:
        """Compare one layer's statistics with the policy's thresholds."""


def mask_layout(policy: Policy, geometry: ModelGeometry) -> MaskLayout:
    """Return how a policy's bits map to score cells; the paper's rule has no boundary window."""
    probe = isinstance(policy, ProbePolicy)
    shared = isinstance(policy, ProbePolicy) and policy.head_sharing == "kv"
    return MaskLayout(
        layers=geometry.layers,
        heads=geometry.heads,
        mask_heads=geometry.kv_heads if shared else geometry.heads,
        page_size=policy.page_size,
        levels=policy.levels,
        boundary=policy.boundary if isinstance(policy, ProbePolicy) else 0,
        neighbour=probe,
    )


class ProbeRule:
    """Probe statistics for CA, the document's own windows for LA (DESIGN section 3)."""

    def __init__(
        self, policy: ProbePolicy, prefix: list[int], bank: ProbeBank, frequencies: torch.Tensor
    ) -> None:
        self.prefix = prefix
        self.last_layer = len(bank.layers) - 1 - policy.skip_last_layer
        self._policy = policy
        self._bank = bank
        self._frequencies = frequencies

    def begin(self, packed: Packed) -> "ProbeBatch":
        """Lay out a batch of documents."""
        return ProbeBatch(self._policy, self._bank, self._frequencies, packed)

    def levels(self, scores: LayerScores) -> LayerLevels:
        """Return how many thresholds each page and tile exceeds."""
        return probe_levels(scores, self._policy)


class ProbeBatch:
    """One batch under the probe rule."""

    def __init__(
        self, policy: ProbePolicy, bank: ProbeBank, frequencies: torch.Tensor, packed: Packed
    ) -> None:
        self.pages = packed.pages(policy.page_size)
        self.triangles = packed.triangles(policy.la_dense_tiles)
        self._policy, self._bank = policy, bank
        sizes = (policy.page_size, policy.la_dense_tiles)
        self._statistics = PackedStatistics(packed, *sizes, frequencies)

    def score(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, scale: float
    ) -> LayerScores:
        """Score pages against the bank, and the tiles of documents that are long enough."""
        return LayerScores(self.cross(layer, k, scale), self.local(q, k, lse, scale))

    def cross(self, layer: int, k: torch.Tensor, scale: float) -> torch.Tensor:
        """Return CA scores [mask_heads, pages.total]; k [kv_heads, T, D] as it stands."""
        bank = self._bank.layers[layer]
        # The probe stands where the prefix ends; each document is moved in front of it.
        ca = self._statistics.probe(bank.q, bank.lse, k, self._policy.window, scale)
        return shared_scores(weighted_scores(ca, layer, self._policy), k.shape[0], self._policy)

    def local(
        self, q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, scale: float
    ) -> torch.Tensor | None:
        """Return LA scores [mask_heads, triangles.total], None where no document has any."""
        la = self._statistics.local(q, k, lse, self._policy.la_window, scale)
        return None if la is None else shared_scores(la, k.shape[0], self._policy)


def tile_scores(
    q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, policy: ProbePolicy, scale: float
) -> torch.Tensor | None:
    """Return a document's LA scores [mask_heads, triangle], None where it is short enough for all.

    q [heads, n, D], k [kv_heads, n, D] and lse [heads, n] are the document's own rows and keys.
    """
    if -(-q.shape[1] // TILE) <= policy.la_dense_tiles:
        return None
    la = local_scores(q, k, lse, policy.la_window, policy.page_size, scale)
    return shared_scores(la, k.shape[0], policy)


def weighted_scores(ca: torch.Tensor, layer: int, policy: ProbePolicy) -> torch.Tensor:
    """Return CA scores [heads, pages] of one layer times the policy's weights of its heads."""
    if not policy.head_weights:
        return ca
    return ca * torch.tensor(policy.head_weights[layer], device=ca.device)[:, None]


def unmarked(scores: LayerScores) -> LayerScores:
    """Return scores of the same shape that no threshold marks."""
    la = None if scores.la is None else torch.zeros_like(scores.la)
    return LayerScores(torch.zeros_like(scores.ca), la)


def shared_scores(scores: torch.Tensor, kv_heads: int, policy: ProbePolicy) -> torch.Tensor:
    """Return one row per mask head of [heads, entries]: a KV group's mean when bits are shared."""
    if policy.head_sharing == "query":
        return scores
    shared: torch.Tensor = scores.unflatten(0, (kv_heads, -1)).mean(1)
    return shared


def probe_levels(scores: LayerScores, policy: ProbePolicy) -> LayerLevels:
    """Return how many of a policy's thresholds each page and tile exceeds."""
    return LayerLevels(
        nested_levels(scores.ca, policy.ca_levels),
        None if scores.la is None else nested_levels(scores.la, policy.la_levels),
    )
