"""Extraction: run one document through the model and keep where attention was high."""

from collections.abc import Sequence
from typing import Any

import torch

from sift_index.adapters.hf_attention import attention_handler
from sift_index.errors import UsageError
from sift_index.formats import bits
from sift_index.formats.identity import anchor, document_key
from sift_index.formats.masks import DocumentMasks, MaskKind, PackedMask
from sift_index.kernels.api import TILE, causal_attention
from sift_index.models.loading import LoadedModel
from sift_index.selection.policy import Policy, ProbePolicy
from sift_index.selection.probes import build_bank
from sift_index.selection.rules import LayerLevels, PaperRule, ProbeRule, Rule, mask_layout


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
        if not 1 <= len(ids) <= self.longest:
            raise UsageError(
                f"expected a document of 1 to {self.longest} tokens, found {len(ids)}; split it"
            )
        capture = _Capture(self._rule)
        tokens = torch.tensor([[*self._rule.prefix, *ids]], device=self._loaded.device)
        with torch.inference_mode(), attention_handler(self._loaded.model, capture):
            self._loaded.model.base_model(input_ids=tokens, use_cache=False)
        return self._pack(ids, [capture.levels[layer] for layer in range(self.layout.layers)])

    def _pack(self, ids: Sequence[int], levels: list[LayerLevels]) -> DocumentMasks:
        tiles = -(-len(ids) // TILE)
        pages = -(-len(ids) // self.layout.page_size)
        ca = self._packed(MaskKind.CA, [part.ca for part in levels], pages, self.layout.page_size)
        local = [part.la for part in levels if part.la is not None]
        la = self._packed(MaskKind.LA, local, tiles, TILE) if local else None
        return DocumentMasks(document_key(ids), anchor(ids), len(ids), ca, la)

    def _packed(
        self, kind: MaskKind, layers: list[torch.Tensor], entries: int, granule: int
    ) -> PackedMask:
        values = torch.stack(layers).cpu().numpy()
        packed = bits.pack(values, self.layout.levels)
        return PackedMask(kind, packed, entries, granule, self.layout.levels)


def _make_rule(loaded: LoadedModel, policy: Policy, prefix: list[int]) -> Rule:
    if not isinstance(policy, ProbePolicy):
        return PaperRule(policy)
    frequencies = loaded.model.base_model.rotary_emb.inv_freq
    return ProbeRule(policy, prefix, build_bank(loaded, policy, prefix), frequencies)


class _Capture:
    """Dense attention that lets a rule observe every layer."""

    def __init__(self, rule: Rule) -> None:
        self.levels: dict[int, LayerLevels] = {}
        self._rule = rule

    def attend(self, layer: int, q: Any, k: Any, v: Any, scale: float) -> torch.Tensor:
        out, lse = causal_attention(q, k, v, scale)
        self.levels[layer] = self._rule.observe(layer, q, k, lse, scale)
        return out
