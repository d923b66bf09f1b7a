"""Composing: token ids in, spans found by key, rules of placement applied."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.identity import key_of, token_bytes
from sift_index.formats.masks import DocumentMasks
from sift_index.kernels.api import MaskLayout, SpanMask, SparsePlan
from sift_index.prompts import Segment
from sift_index.runtime.masks import span_mask
from sift_index.runtime.plan import PromptPlan, SegmentOutcome

WORD = 4  # bytes of a token id
Lookup = Callable[[bytes], DocumentMasks | None]


@dataclass
class Composition:
    """Spans and outcomes of a prompt while its segments are added in order.

    Ids travel as `token_bytes`: checked once, hashed and cut without being turned back.
    data: those of the prompt so far.
    """

    lookup: Lookup
    longest: int
    document_keys: Callable[[str], tuple[bytes, ...]]
    data: bytearray = field(default_factory=bytearray)
    spans: list[SpanMask] = field(default_factory=list)
    outcomes: list[SegmentOutcome] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        """Token ids of the prompt so far; a new list each time."""
        found: list[int] = np.frombuffer(bytes(self.data), "<u4").tolist()
        return found

    def add(self, segment: Segment | Sequence[int]) -> None:
        """Append a segment as one or several spans, or as glue with the reason.

        Raises UsageError for ids that are not one dimension of token ids.
        """
        part = segment if isinstance(segment, Segment) else Segment(segment)
        ids = token_bytes(part.ids)
        if not ids:
            self._glue(ids, "empty")
        elif part.glue:
            self._glue(ids, "declared_glue")
        elif not self.data:
            self._glue(ids, "no_prefix")
        else:
            self._add_document(part, ids)

    def plan(
        self,
        layout: MaskLayout,
        fingerprint: Fingerprint,
        level: int = 1,
        warnings: Sequence[str] = (),
    ) -> PromptPlan:
        """Return the plan of the segments added so far."""
        return PromptPlan(
            data=bytes(self.data),
            sparse=SparsePlan(layout, self._length, tuple(self.spans), level),
            outcomes=tuple(self.outcomes),
            fingerprint=fingerprint,
            warnings=tuple(warnings),
        )

    def _add_document(self, part: Segment, ids: bytes) -> None:
        """Look a document up whole, then in the pieces a build splits over-long documents into."""
        width = WORD * self.longest
        pieces = [ids[at : at + width] for at in range(0, len(ids), width)]
        found = [(piece, self.lookup(key_of(piece))) for piece in pieces]
        for piece, masks in found:
            if masks is None:
                self._glue(piece, self._miss_reason(part))
            else:
                self._span(piece, masks)

    def _miss_reason(self, part: Segment) -> str:
        known = part.document is not None and self.document_keys(part.document)
        return "changed" if known else "not_indexed"

    def _span(self, ids: bytes, masks: DocumentMasks) -> None:
        start, stop = self._extend(ids)
        self.spans.append(span_mask(masks, start))
        self.outcomes.append(SegmentOutcome(start, stop, "span", "indexed", masks.key.hex()))

    def _glue(self, ids: bytes, reason: str) -> None:
        self.outcomes.append(SegmentOutcome(*self._extend(ids), "glue", reason))

    @property
    def _length(self) -> int:
        return len(self.data) // WORD

    def _extend(self, ids: bytes) -> tuple[int, int]:
        """Append token ids and return where they start and stop."""
        start = self._length
        self.data += ids
        return start, self._length


def split_ids(ids: Sequence[int], longest: int) -> list[Sequence[int]]:
    """Cut an over-long document into pieces of `longest` tokens; the last may be shorter."""
    return [ids[at : at + longest] for at in range(0, len(ids), longest)]
