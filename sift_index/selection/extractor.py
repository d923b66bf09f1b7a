"""Extraction: run documents through the model and keep where attention was high.

Documents run packed; their bits are thresholded and packed where the model runs, and only they
leave it. On a GPU `launch` returns before the work is done, so that the next batch can be prepared.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from sift_index.errors import UsageError
from sift_index.formats import bits
from sift_index.formats.identity import anchor, document_key
from sift_index.formats.masks import DocumentMasks, MaskKind, PackedMask
from sift_index.kernels.api import TILE, MaskLayout
from sift_index.models.geometry import ModelGeometry
from sift_index.models.loading import LoadedModel
from sift_index.selection.extraction import BatchBits, Extraction
from sift_index.selection.paper_rule import PaperRule
from sift_index.selection.policy import Policy, ProbePolicy
from sift_index.selection.prefill import packed_documents, run_packed
from sift_index.selection.probe_bank import build_bank
from sift_index.selection.rules import (
    BatchRule,
    LayerLevels,
    LayerScores,
    ProbeRule,
    Rule,
    mask_layout,
    probe_levels,
)
from sift_index.selection.vocabulary import require_known


@dataclass(frozen=True)
class DocumentScores:
    """A document's statistics before thresholds, layer by layer: to try many thresholds on."""

    ids: tuple[int, ...]
    layers: tuple[LayerScores, ...]


class Extractor:
    """Turns documents' token ids into masks, one dense forward a batch, memory O(tokens)."""

    def __init__(self, loaded: LoadedModel, policy: Policy, prefix: list[int]) -> None:
        """Prepare the rule; with a probe policy this runs the probe texts once."""
        self.layout = mask_layout(policy, loaded.geometry)
        self._loaded = loaded
        self._rule = _make_rule(loaded, policy, prefix)

    @property
    def rule(self) -> Rule:
        """The rule that scores documents."""
        return self._rule

    @property
    def longest(self) -> int:
        """Tokens of the longest document that fits the model's context behind the prefix."""
        return self._loaded.geometry.context - len(self._rule.prefix)

    def extract(self, ids: Sequence[int]) -> DocumentMasks:
        """Return the masks of one document; errors as `launch`."""
        return self.launch([ids]).result()[0]

    def launch(self, documents: Sequence[Sequence[int]]) -> Extraction:
        """Start to extract a batch of documents, packed into one forward pass.

        UsageError when there is none, or one that is empty, over-long or not of this vocabulary.
        """
        self._require_fitting(documents)
        batch = self._begin(documents)
        kept = BatchBits(self.layout, batch.pages, batch.triangles, self._loaded.device)
        # Bits replace scores layer by layer: the scores of a long document would fill a GPU.
        self._run(
            documents, batch, lambda layer, scores: kept.keep(layer, self._rule.levels(scores))
        )
        return kept.leave(documents)

    def scores(self, ids: Sequence[int]) -> DocumentScores:
        """Return one document's statistics; errors as `extract`."""
        self._require_fitting([ids])
        batch, found = self._begin([ids]), dict[int, LayerScores]()
        self._run([ids], batch, found.__setitem__)
        layers = (found.get(layer) or self._unscored(batch) for layer in range(self.layout.layers))
        return DocumentScores(tuple(ids), tuple(_only(batch, scores) for scores in layers))

    def _begin(self, documents: Sequence[Sequence[int]]) -> BatchRule:
        return self._rule.begin(packed_documents(self._rule.prefix, documents))

    def _run(
        self,
        documents: Sequence[Sequence[int]],
        batch: BatchRule,
        keep: Callable[[int, LayerScores], None],
    ) -> None:
        """Run documents behind the rule's prefix and hand on the scores of every scored layer."""
        last = self._rule.last_layer

        def observe(
            layer: int, q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, scale: float
        ) -> None:
            if layer <= last:
                keep(layer, batch.score(layer, q, k, lse, scale))

        run_packed(self._loaded.model, self._rule.prefix, documents, observe, last)

    def _require_fitting(self, documents: Sequence[Sequence[int]]) -> None:
        if not documents:
            raise UsageError("expected at least one document, found none; skip an empty batch")
        for ids in documents:
            require_known(ids, self._loaded.geometry.vocab_size)
            if not 1 <= len(ids) <= self.longest:
                raise UsageError(
                    f"expected a document of 1 to {self.longest} tokens, found {len(ids)}; "
                    f"{'split it' if len(ids) else 'leave it out'}"
                )

    def _unscored(self, batch: BatchRule) -> LayerScores:
        """Return scores that no threshold marks, of a layer that is not scored."""
        heads, device = self.layout.mask_heads, self._loaded.device
        la = batch.triangles.total
        return LayerScores(
            torch.zeros(heads, batch.pages.total, device=device),
            torch.zeros(heads, la, device=device) if la else None,
        )


def _only(batch: BatchRule, scores: LayerScores) -> LayerScores:
    """Return the scores of a batch's only document, without what fills its last byte."""
    la = None if scores.la is None else batch.triangles.split(scores.la)[0]
    return LayerScores(batch.pages.split(scores.ca)[0], la)


def rethreshold(layout: MaskLayout, scores: DocumentScores, policy: ProbePolicy) -> DocumentMasks:
    """Return masks under the thresholds of `policy`; its other numbers must be the scores' own."""
    levels = [probe_levels(layer, policy) for layer in scores.layers]
    return pack_masks(layout, scores.ids, levels)


def pack_masks(
    layout: MaskLayout, ids: Sequence[int], levels: Sequence[LayerLevels]
) -> DocumentMasks:
    """Pack a document's levels into the bits an index stores."""
    tiles = -(-len(ids) // TILE)
    pages = -(-len(ids) // layout.page_size)
    ca = _packed(layout, MaskKind.CA, [part.ca for part in levels], pages)
    local = [part.la for part in levels if part.la is not None]
    la = _packed(layout, MaskKind.LA, local, tiles) if local else None
    return DocumentMasks(document_key(ids), anchor(ids), len(ids), ca, la)


def _packed(
    layout: MaskLayout, kind: MaskKind, layers: list[torch.Tensor], entries: int
) -> PackedMask:
    granule = layout.page_size if kind == MaskKind.CA else TILE
    packed = bits.pack(torch.stack(layers).cpu().numpy(), layout.levels)
    return PackedMask(kind, packed, entries, granule, layout.levels)


def _make_rule(loaded: LoadedModel, policy: Policy, prefix: list[int]) -> Rule:
    if not isinstance(policy, ProbePolicy):
        return PaperRule(policy, loaded.geometry.layers)
    check_weights(policy, loaded.geometry)
    frequencies = loaded.model.base_model.rotary_emb.inv_freq
    return ProbeRule(policy, prefix, build_bank(loaded, policy, prefix), frequencies)


def check_weights(policy: ProbePolicy, geometry: ModelGeometry) -> None:
    """Raise UsageError where a policy's head weights are those of a model of another shape."""
    weights = policy.head_weights
    found = (len(weights), len(weights[0]) if weights else 0)
    if weights and found != (geometry.layers, geometry.heads):
        raise UsageError(
            f"expected head_weights of {geometry.layers} layers x {geometry.heads} heads, found "
            f"{found[0]} x {found[1]}; tune the policy on this model"
        )
