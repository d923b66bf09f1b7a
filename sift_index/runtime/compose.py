"""Composing: token ids in, spans found by key, rules of placement applied."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.identity import document_key, token_list
from sift_index.formats.masks import DocumentMasks
from sift_index.kernels.api import MaskLayout, SpanMask, SparsePlan
from sift_index.prompts import Segment
from sift_index.runtime.masks import span_mask
from sift_index.runtime.plan import PromptPlan, SegmentOutcome

Lookup = Callable[[bytes], DocumentMasks | None]


@dataclass
class Composition:
    """Spans and outcomes of a prompt while its segments are added in order."""

    lookup: Lookup
    longest: int
    document_keys: Callable[[str], tuple[bytes, ...]]
    ids: list[int] = field(default_factory=list)
    spans: list[SpanMask] = field(default_factory=list)
    outcomes: list[SegmentOutcome] = field(default_factory=list)

    def add(self, segment: Segment | Sequence[int]) -> None:
        """Append a segment as one or several spans, or as glue with the reason.

        Raises UsageError for ids that are not one dimension of token ids.
        """
        part = segment if isinstance(segment, Segment) else Segment(segment)
        part = replace(part, ids=token_list(part.ids))
        if not len(part.ids):
            self._glue(part.ids, "empty")
        elif part.glue:
            self._glue(part.ids, "declared_glue")
        elif not self.ids:
            self._glue(part.ids, "no_prefix")
        else:
            self._add_document(part)

    def plan(
        self,
        layout: MaskLayout,
        fingerprint: Fingerprint,
        level: int = 1,
        warnings: Sequence[str] = (),
    ) -> PromptPlan:
        """Return the plan of the segments added so far."""
        return PromptPlan(
            ids=tuple(self.ids),
            sparse=SparsePlan(layout, len(self.ids), tuple(self.spans), level),
            outcomes=tuple(self.outcomes),
            fingerprint=fingerprint,
            warnings=tuple(warnings),
        )

    def _add_document(self, part: Segment) -> None:
        """Look a document up whole, then in the pieces a build splits over-long documents into."""
        pieces = [part.ids]
        if len(part.ids) > self.longest:
            pieces = split_ids(part.ids, self.longest)
        found = [(ids, self.lookup(document_key(ids))) for ids in pieces]
        for ids, masks in found:
            if masks is None:
                self._glue(ids, self._miss_reason(part))
            else:
                self._span(ids, masks)

    def _miss_reason(self, part: Segment) -> str:
        known = part.document is not None and self.document_keys(part.document)
        return "changed" if known else "not_indexed"

    def _span(self, ids: Sequence[int], masks: DocumentMasks) -> None:
        start = len(self.ids)
        self.ids.extend(ids)
        self.spans.append(span_mask(masks, start))
        stop = len(self.ids)
        self.outcomes.append(SegmentOutcome(start, stop, "span", "indexed", masks.key.hex()))

    def _glue(self, ids: Sequence[int], reason: str) -> None:
        start = len(self.ids)
        self.ids.extend(ids)
        self.outcomes.append(SegmentOutcome(start, len(self.ids), "glue", reason))


def split_ids(ids: Sequence[int], longest: int) -> list[Sequence[int]]:
    """Cut an over-long document into pieces of `longest` tokens; the last may be shorter."""
    return [ids[at : at + longest] for at in range(0, len(ids), longest)]
