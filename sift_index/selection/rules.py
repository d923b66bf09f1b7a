"""Rules: one layer's Q and K of a document in, statistics and levels of its pages and tiles out."""

from dataclasses import dataclass
from typing import Protocol, cast

import torch

from sift_index.kernels.api import (
    TILE,
    MaskLayout,
    local_scores,
    nested_levels,
    paper_statistics,
    probe_scores,
    turn,
)
from sift_index.kernels.statistics import tile_maxima
from sift_index.models.geometry import ModelGeometry
from sift_index.selection.policy import PaperPolicy, Policy, ProbePolicy
from sift_index.selection.probes import ProbeBank


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


class Rule(Protocol):
    """Turns what a layer attends to into levels."""

    @property
    def prefix(self) -> list[int]:
        """Token ids that documents run behind; empty when they run alone."""

    def score(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, scale: float
    ) -> LayerScores:
        """Return the statistics of one layer.

        q [heads, P + n, D] and k [kv_heads, P + n, D] are rotated, lse is [heads, P + n]; P is the
        length of the prefix.
        """

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
        self._policy = policy
        self._bank = bank
        self._frequencies = frequencies

    def score(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, scale: float
    ) -> LayerScores:
        """Score the document's pages against the bank, and its tiles when it is long enough."""
        start = len(self.prefix)
        own = (q[:, start:], k[:, start:], lse[:, start:])
        scores = LayerScores(
            self._cross(layer, own[1], scale), tile_scores(*own, self._policy, scale)
        )
        last = layer == len(self._bank.layers) - 1
        return unmarked(scores) if last and self._policy.skip_last_layer else scores

    def _cross(self, layer: int, k: torch.Tensor, scale: float) -> torch.Tensor:
        """Score pages: k [kv_heads, n, D] are the document's keys where they stand."""
        policy, bank = self._policy, self._bank.layers[layer]
        # The probe stands where the prefix ends; the document is moved in front of it.
        keys = turn(k, -k.shape[1], self._frequencies)
        ca = probe_scores(bank.q, bank.lse, keys, policy.window, policy.page_size, scale)
        return shared_scores(weighted_scores(ca, layer, policy), k.shape[0], policy)

    def levels(self, scores: LayerScores) -> LayerLevels:
        """Return how many thresholds each page and tile exceeds."""
        return probe_levels(scores, self._policy)


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


class PaperRule:
    """The paper's rule: tiles by their highest score, pages by any strong key (PAPER 1.1)."""

    prefix: list[int] = []

    def __init__(self, policy: PaperPolicy) -> None:
        self._policy = policy

    def score(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, scale: float
    ) -> LayerScores:
        """Return each page's highest share of high scores, and each tile's highest score."""
        policy = self._policy
        maxima, high = paper_statistics(q, k, lse, policy.beta, scale)
        rows = torch.arange(1, q.shape[1] + 1, device=q.device)
        if policy.normalisation == "remaining":
            rows = rows.flip(0)
        return LayerScores(tile_maxima(high / rows, policy.page_size), maxima)

    def levels(self, scores: LayerScores) -> LayerLevels:
        """Return bits: tile maximum >= alpha or forced; any key with a high share >= gamma."""
        maxima = cast(torch.Tensor, scores.la)
        tiles = scores.ca.shape[-1]
        rows, columns = torch.tril_indices(tiles, tiles, device=maxima.device)
        forced = (rows == columns) | (columns == 0)
        la = (maxima >= self._policy.alpha) | forced
        return LayerLevels((scores.ca >= self._policy.gamma).to(torch.uint8), la.to(torch.uint8))
