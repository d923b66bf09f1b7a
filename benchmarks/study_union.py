"""Whether a document's own attention helps to choose the pages that later documents will need.

python -m benchmarks.study_union --questions musique.jsonl --min-tokens 4000 --prompts 8

The default marks a page by the probe bank. Here a page is also on when the document's own later
rows, at least a tile behind a key, give it more than FACTOR times the CA threshold: its score is
max(probe score, own score / FACTOR). `probe` is the default's rule.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from benchmarks.study import AT_EQUAL_CA, Study, main
from sift_index.evaluation.methods.masks import OnTheSpot
from sift_index.evaluation.methods.registry import Setting
from sift_index.formats.masks import DocumentMasks
from sift_index.kernels.api import TILE
from sift_index.kernels.statistics import page_means, probability_blocks
from sift_index.models.loading import LoadedModel
from sift_index.selection.extractor import DocumentScores, Extractor, rethreshold
from sift_index.selection.policy import ProbePolicy
from sift_index.selection.prefill import run_packed

REFERENCE = "probe"
# Thresholds of the probe's score alone, and of the union by its factor: more is on in a union.
PROBE_THRESHOLDS = (0.0015, 0.003, 0.006, 0.012)
UNION_THRESHOLDS = {0.5: (0.006, 0.012), 1.0: (0.003, 0.006, 0.012), 2.0: (0.003, 0.006, 0.012)}


class OwnAndProbe:
    """Both statistics of every document that is met, found once for all thresholds and factors."""

    def __init__(self, loaded: LoadedModel, policy: ProbePolicy, prefix: list[int]) -> None:
        self.extractor = Extractor(loaded, policy, prefix)
        self._loaded, self._policy, self._prefix = loaded, policy, prefix
        self._known: dict[tuple[int, ...], tuple[DocumentScores, list[torch.Tensor]]] = {}

    def masks(self, factor: float, threshold: float, ids: Sequence[int]) -> DocumentMasks:
        """Return a document's masks; a factor of infinity leaves its own attention out."""
        found, own = self._statistics(tuple(ids))
        layers = (
            replace(layer, ca=torch.maximum(layer.ca, later / factor))
            for layer, later in zip(found.layers, own, strict=True)
        )
        policy = replace(self._policy, ca_thresholds=(threshold,))
        return rethreshold(self.extractor.layout, replace(found, layers=tuple(layers)), policy)

    def _statistics(self, ids: tuple[int, ...]) -> tuple[DocumentScores, list[torch.Tensor]]:
        if ids not in self._known:
            probe = self.extractor.scores(ids)
            # A layer that the policy skips has no own scores either.
            own = [torch.zeros_like(layer.ca) for layer in probe.layers]
            last = len(own) - 1 - self._policy.skip_last_layer
            run_packed(self._loaded.model, self._prefix, [ids], self._observer(own), last)
            self._known[ids] = probe, own
        return self._known[ids]

    def _observer(
        self, found: list[torch.Tensor]
    ) -> Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, float], None]:
        own, size = slice(len(self._prefix), None), self._policy.page_size

        def observe(
            layer: int, q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, scale: float
        ) -> None:
            found[layer] = own_scores(q[:, own], k[:, own], lse[:, own], size, scale)

        return observe


def own_scores(
    q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, page_size: int, scale: float
) -> torch.Tensor:
    """Return [heads, pages]: what rows at least a tile behind a key give it at most, page means.

    Arguments as in `probability_blocks`; the last tile's keys have no such rows, and 0.
    """
    best = torch.zeros(q.shape[0], k.shape[1], device=q.device)
    for block in probability_blocks(q, k, lse, scale):
        rows, width = block.p.shape[1:]
        row = torch.arange(block.row, block.row + rows, device=q.device)
        keys = slice(block.key, block.key + width)
        key = torch.arange(keys.start, keys.stop, device=q.device)
        far = block.p.masked_fill(row[:, None] - key < TILE, 0.0).amax(1)
        best[:, keys] = torch.maximum(best[:, keys], far)
    return page_means(best, page_size)


def study(setting: Setting, policy: ProbePolicy) -> Study:
    """Return the default's rule and its unions; all share the statistics of a document."""
    both = OwnAndProbe(setting.loaded, policy, setting.prefix)
    wanted = {
        f"{REFERENCE}@{threshold}": (float("inf"), threshold) for threshold in PROBE_THRESHOLDS
    }
    for factor, thresholds in UNION_THRESHOLDS.items():
        wanted |= {f"own x {factor:g}@{threshold}": (factor, threshold) for threshold in thresholds}
    layout, longest = both.extractor.layout, both.extractor.longest
    methods = {
        name: OnTheSpot(
            setting.loaded, layout, longest, partial(both.masks, *numbers), setting.prefix
        )
        for name, numbers in wanted.items()
    }
    return Study("union", methods, REFERENCE, AT_EQUAL_CA)


if __name__ == "__main__":
    main(study, __doc__)
