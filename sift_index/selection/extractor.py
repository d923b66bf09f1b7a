"""Extraction: run one document through the model and keep where attention was high."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from sift_index.adapters.hf_attention import run_under
from sift_index.errors import UsageError
from sift_index.formats import bits
from sift_index.formats.identity import anchor, document_key
from sift_index.formats.masks import DocumentMasks, MaskKind, PackedMask
from sift_index.kernels.api import TILE, MaskLayout, causal_attention
from sift_index.models.geometry import ModelGeometry
from sift_index.models.loading import LoadedModel
from sift_index.selection.policy import Policy, ProbePolicy
from sift_index.selection.probes import build_bank
from sift_index.selection.rules import (
    LayerLevels,
    LayerScores,
    PaperRule,
    ProbeRule,
    Rule,
    mask_layout,
    probe_levels,
)

Kept = TypeVar("Kept")


@dataclass(frozen=True)
class DocumentScores:
    """A document's statistics before thresholds, layer by layer: to try many thresholds on."""

    ids: tuple[int, ...]
    layers: tuple[LayerScores, ...]


class Extractor:
    """Turns a document's token ids into its masks, one dense forward each, memory O(tokens)."""

    def __init__(self, loaded: LoadedModel, policy: Policy, prefix: list[int]) -> None:
        """Prepare the rule; with a probe policy this runs the probe texts once."""
        self.layout = mask_layout(policy, loaded.geometry)
        self._loaded = loaded
        self._rule = _make_rule(loaded, policy, prefix)

    @property
    def longest(self) -> int:
        """Tokens of the longest document that fits the model's context behind the prefix."""
        return self._loaded.geometry.context - len(self._rule.prefix)

    def extract(self, ids: Sequence[int]) -> DocumentMasks:
        """Return the masks of one document; UsageError when it is empty or over-long."""
        # Levels replace scores layer by layer: the scores of a long document would fill a GPU.
        return pack_masks(self.layout, ids, self._observe(ids, self._rule.levels))

    def scores(self, ids: Sequence[int]) -> DocumentScores:
        """Return one document's statistics; errors as `extract`."""
        return DocumentScores(tuple(ids), tuple(self._observe(ids, lambda scores: scores)))

    def _observe(self, ids: Sequence[int], keep: Callable[[LayerScores], Kept]) -> list[Kept]:
        """Run the document behind the rule's prefix and keep something of every layer."""
        if not 1 <= len(ids) <= self.longest:
            raise UsageError(
                f"expected a document of 1 to {self.longest} tokens, found {len(ids)}; split it"
            )
        capture = _Capture(self._rule, keep)
        run_under(self._loaded.model, [*self._rule.prefix, *ids], capture)
        return [capture.kept[layer] for layer in range(self.layout.layers)]


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
        return PaperRule(policy)
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


class _Capture(Generic[Kept]):
    """Dense attention that lets a rule observe every layer."""

    def __init__(self, rule: Rule, keep: Callable[[LayerScores], Kept]) -> None:
        self.kept: dict[int, Kept] = {}
        self._rule = rule
        self._keep = keep

    def attend(self, layer: int, q: Any, k: Any, v: Any, scale: float) -> torch.Tensor:
        out, lse = causal_attention(q, k, v, scale)
        self.kept[layer] = self._keep(self._rule.score(layer, q, k, lse, scale))
        return out
