"""The paper's rule: tiles by their highest score, pages by any strong key (PAPER 1.1)."""

import torch

from sift_index.kernels.api import TILE, Packed, paper_statistics
from sift_index.kernels.statistics import tile_maxima
from sift_index.selection.policy import PaperPolicy
from sift_index.selection.rules import BatchRule, LayerLevels, LayerScores

# More than any probability, and so than any threshold: tiles that are on whatever they score.
FORCED = 2.0


class PaperRule:
    """Fixed thresholds on single scores of a document run alone."""

    prefix: list[int] = []

    def __init__(self, policy: PaperPolicy, layers: int) -> None:
        self._policy = policy
        self.last_layer = layers - 1

    def begin(self, packed: Packed) -> BatchRule:
        """Prepare a batch of documents; each is scored on its own."""
        return _PaperBatch(self._policy, packed)

    def levels(self, scores: LayerScores) -> LayerLevels:
        """Return bits: tile maximum >= alpha or forced; any key with a high share >= gamma."""
        ca = (scores.ca >= self._policy.gamma).to(torch.uint8)
        la = None if scores.la is None else (scores.la >= self._policy.alpha).to(torch.uint8)
        return LayerLevels(ca, la)


class _PaperBatch:
    def __init__(self, policy: PaperPolicy, packed: Packed) -> None:
        self.pages, self.triangles = packed.pages(policy.page_size), packed.triangles(0)
        self._policy, self._packed = policy, packed

    def score(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, scale: float
    ) -> LayerScores:
        """Return each page's highest share of high scores, and each tile's highest score."""
        found = [
            self._document(q[:, rows], k[:, rows], lse[:, rows], scale)
            for rows in self._packed.rows
        ]
        ca, la = zip(*found, strict=True)
        return LayerScores(self.pages.join(ca), self.triangles.join(la))

    def _document(
        self, q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        policy = self._policy
        maxima, high = paper_statistics(q, k, lse, policy.beta, scale)
        rows = torch.arange(1, q.shape[1] + 1, device=q.device)
        if policy.normalisation == "remaining":
            rows = rows.flip(0)
        tiles = -(-q.shape[1] // TILE)
        row, column = torch.tril_indices(tiles, tiles, device=maxima.device)
        forced = (row == column) | (column == 0)
        return tile_maxima(high / rows, policy.page_size), maxima.masked_fill(forced, FORCED)
