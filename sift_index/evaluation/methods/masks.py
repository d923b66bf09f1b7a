"""Methods whose masks are made from the documents alone: an index, a policy, or nothing at all."""

from collections.abc import Callable, Sequence

import torch

from sift_index.evaluation.methods.treatment import Method, Sparse
from sift_index.fingerprints import advisory_identity, prefix_digest, serve_identity
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.identity import document_key
from sift_index.formats.masks import DocumentMasks
from sift_index.kernels.api import TILE, MaskLayout
from sift_index.models.loading import LoadedModel
from sift_index.prompts import Segment
from sift_index.runtime.compose import Composition, split_ids
from sift_index.runtime.index import SiftIndex
from sift_index.runtime.plan import PromptPlan
from sift_index.selection.extractor import Extractor, pack_masks
from sift_index.selection.policy import Policy, ProbePolicy
from sift_index.selection.rules import LayerLevels

MakeMasks = Callable[[Sequence[int]], DocumentMasks]


def indexed(index: SiftIndex, level: int = 1) -> Method:
    """Return the method that serves an index as it is; documents it lacks stay dense."""
    return lambda prompt: Sparse(index.compose(prompt, level=level))


def extracted(loaded: LoadedModel, policy: Policy, prefix: list[int]) -> "OnTheSpot":
    """Return the method that extracts a prompt's documents by a policy, each once."""
    behind = prefix if isinstance(policy, ProbePolicy) else []
    extractor = Extractor(loaded, policy, behind)
    return OnTheSpot(loaded, extractor.layout, extractor.longest, extractor.extract, behind)


def spot_fingerprint(loaded: LoadedModel, layout: MaskLayout, prefix: Sequence[int]) -> Fingerprint:
    """Return the fingerprint of masks that are made for `loaded` behind `prefix` and not stored."""
    advisory = {
        **advisory_identity(loaded.model, loaded.tokenizer),
        "prefix": prefix_digest(prefix),
    }
    return Fingerprint({}, serve_identity(loaded.model, layout), advisory)


class OnTheSpot:
    """Sparse prefill with masks made when a document is first seen, without an index."""

    def __init__(
        self,
        loaded: LoadedModel,
        layout: MaskLayout,
        longest: int,
        make: MakeMasks,
        prefix: list[int],
    ) -> None:
        self._layout, self._longest, self._make = layout, longest, make
        self._known: dict[bytes, DocumentMasks] = {}
        self._fingerprint = spot_fingerprint(loaded, layout, prefix)

    def __call__(self, prompt: Sequence[Segment]) -> Sparse:
        """Make the masks that are missing and compose the prompt."""
        return Sparse(self.compose(prompt))

    def at(self, level: int) -> Method:
        """Return the method at another of the nested thresholds; all share one extraction."""
        return lambda prompt: Sparse(self.compose(prompt, level))

    def compose(self, prompt: Sequence[Segment], level: int = 1) -> PromptPlan:
        """Return the prompt's plan."""
        parts = Composition(self._known.get, self._longest, lambda document: ())
        for segment in prompt:
            if not segment.glue:
                self._make_missing(segment.ids)
            parts.add(segment)
        return parts.plan(self._layout, self._fingerprint, level)

    def _make_missing(self, ids: Sequence[int]) -> None:
        for piece in split_ids(ids, self._longest):
            key = document_key(piece)
            if key not in self._known:
                self._known[key] = self._make(piece)


def no_cross(loaded: LoadedModel, prefix: list[int]) -> Method:
    """Return the method in which documents do not see each other: no CA, no boundary window."""
    shape = loaded.geometry
    layout = MaskLayout(
        layers=shape.layers,
        heads=shape.heads,
        mask_heads=shape.kv_heads,
        page_size=TILE,
        boundary=0,
    )

    def blank(ids: Sequence[int]) -> DocumentMasks:
        pages = -(-len(ids) // TILE)
        off = torch.zeros(layout.layers, layout.mask_heads, pages, dtype=torch.uint8)
        return pack_masks(layout, ids, [LayerLevels(layer, None) for layer in off])

    return OnTheSpot(loaded, layout, shape.context, blank, prefix)
