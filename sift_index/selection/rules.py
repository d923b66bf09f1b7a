"""Rules: one layer's Q and K of a document in, levels of its pages and tiles out."""

from dataclasses import dataclass
from typing import Protocol

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
from sift_index.kernels.statistics import page_means
from sift_index.models.geometry import ModelGeometry
from sift_index.selection.policy import PaperPolicy, Policy, ProbePolicy
from sift_index.selection.probes import ProbeBank


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

    def observe(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, scale: float
    ) -> LayerLevels:
        """Return the levels of one layer.

        q [heads, P + n, D] and k [kv_heads, P + n, D] are rotated, lse is [heads, P + n]; P is the
        length of the prefix.
        """


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
        boundary=TILE if probe else 0,
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

    def observe(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, scale: float
    ) -> LayerLevels:
        """Score the document's pages against the bank, and its tiles when it is long enough."""
        policy, start = self._policy, len(self.prefix)
        n = q.shape[1] - start
        # The probe stands where the prefix ends; the document is moved in front of it.
        keys = turn(k[:, start:], -n, self._frequencies)
        bank = self._bank.layers[layer]
        ca = probe_scores(bank.q, bank.lse, keys, policy.window, policy.page_size, scale)
        la = None
        if -(-n // TILE) > policy.la_dense_tiles:
            la = local_scores(
                q[:, start:], k[:, start:], lse[:, start:], policy.window, policy.page_size, scale
            )
        return LayerLevels(
            nested_levels(self._share(ca, k), policy.level_thresholds(policy.ca_thresholds)),
            None
            if la is None
            else nested_levels(self._share(la, k), policy.level_thresholds(policy.la_thresholds)),
        )

    def _share(self, scores: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """Return one row per mask head: the mean over a KV group's query heads when shared."""
        if self._policy.head_sharing == "query":
            return scores
        shared: torch.Tensor = scores.unflatten(0, (k.shape[0], -1)).mean(1)
        return shared


class PaperRule:
    """The paper's rule: tiles by their highest score, pages by any strong key (PAPER 1.1)."""

    prefix: list[int] = []

    def __init__(self, policy: PaperPolicy) -> None:
        self._policy = policy

    def observe(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, scale: float
    ) -> LayerLevels:
        """Return bits: tile maximum >= alpha or forced; any key with a high share >= gamma."""
        maxima, shares = paper_statistics(q, k, lse, self._policy.beta, scale)
        tiles = -(-q.shape[1] // TILE)
        rows, columns = torch.tril_indices(tiles, tiles, device=q.device)
        forced = (rows == columns) | (columns == 0)
        strong = (shares >= self._policy.gamma).float()
        ca = page_means(strong, self._policy.page_size) > 0
        la = (maxima >= self._policy.alpha) | forced
        return LayerLevels(ca.to(torch.uint8), la.to(torch.uint8))
