"""Methods an evaluation compares: each turns a prompt's segments into a plan, or None for dense."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from sift_index.errors import UsageError
from sift_index.fingerprints import advisory_identity, serve_identity
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.identity import document_key
from sift_index.formats.masks import DocumentMasks
from sift_index.kernels.api import SparsePlan
from sift_index.models.loading import LoadedModel
from sift_index.prompts import Segment
from sift_index.runtime.compose import Composition
from sift_index.runtime.index import SiftIndex
from sift_index.runtime.plan import PromptPlan
from sift_index.selection.extractor import Extractor
from sift_index.selection.policy import load_policy

Method = Callable[[Sequence[Segment]], PromptPlan | None]


def make_methods(names: Sequence[str], loaded: LoadedModel, index: SiftIndex) -> dict[str, Method]:
    """Return the named methods; an unknown name raises UsageError listing the known ones."""
    makers: dict[str, Callable[[], Method]] = {
        "dense": lambda: lambda prompt: None,
        "sift": lambda: index.compose,
        "paper": lambda: PaperMethod(loaded),
        "no-cross": lambda: lambda prompt: without_cross_attention(index.compose(prompt)),
    }
    # Nested thresholds of a two-bit index: `sift:2` is sparser than `sift`, `sift:3` the sparsest.
    for level in range(2, 2**index.layout.levels):
        makers[f"sift:{level}"] = partial(partial, index.compose, level=level)
    if unknown := [name for name in names if name not in makers]:
        raise UsageError(f"expected methods of {', '.join(makers)}, found {', '.join(unknown)}")
    return {name: makers[name]() for name in names}


def without_cross_attention(plan: PromptPlan) -> PromptPlan:
    """Return the plan with documents that do not see each other: no CA bits, no boundary window."""
    layout = replace(plan.sparse.layout, boundary=0)
    spans = tuple(
        replace(span, ca=torch.zeros_like(span.ca), la=None) for span in plan.sparse.spans
    )
    return replace(plan, sparse=replace(plan.sparse, layout=layout, spans=spans))


class PaperMethod:
    """The paper's rule, extracted on the spot from the prompt's own documents."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._extractor = Extractor(loaded, load_policy("paper"), [])
        self._known: dict[bytes, DocumentMasks] = {}
        layout = self._extractor.layout
        self._fingerprint = Fingerprint(
            {}, serve_identity(loaded.model, layout), advisory_identity(loaded.model, None)
        )

    def __call__(self, prompt: Sequence[Segment]) -> PromptPlan:
        """Extract documents not seen before and compose the prompt from them."""
        for segment in prompt:
            key = document_key(segment.ids)
            if not segment.glue and key not in self._known:
                self._known[key] = self._extractor.extract(segment.ids)
        parts = Composition(self._known.get, self._extractor.longest, lambda document: ())
        for segment in prompt:
            parts.add(segment)
        return PromptPlan(
            ids=tuple(parts.ids),
            sparse=SparsePlan(self._extractor.layout, len(parts.ids), tuple(parts.spans)),
            outcomes=tuple(parts.outcomes),
            fingerprint=self._fingerprint,
        )
