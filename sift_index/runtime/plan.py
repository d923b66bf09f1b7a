"""A composed prompt: token ids, what each segment became, and the sparse plan for the kernels."""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from sift_index.formats.fingerprint import Fingerprint
from sift_index.kernels.api import TILE, Density, SparsePlan, layer_densities
from sift_index.runtime.levels import level_notes, level_of

SHORT_GLUE_SHARE = 0.02


@dataclass(frozen=True)
class SegmentOutcome:
    """What one segment became: `kind` is span or glue, `reason` why.

    Reasons: indexed (a span), declared_glue, not_indexed, changed (the index holds other tokens for
    the declared document), no_prefix (a span at position 0 would hold the attention sink), empty.
    """

    start: int
    stop: int
    kind: str
    reason: str
    key: str | None = None


@dataclass(frozen=True, eq=False)
class PromptPlan:
    """Everything one prefill needs; immutable, made by `SiftIndex.compose`.

    data: token ids as little-endian uint32. To turn tens of thousands of them into Python numbers
    takes longer than all the rest of composing, so that `ids` are made when they are asked for.
    """

    data: bytes = field(repr=False)
    sparse: SparsePlan
    outcomes: tuple[SegmentOutcome, ...]
    fingerprint: Fingerprint = field(repr=False, hash=False)
    warnings: tuple[str, ...] = ()

    @property
    def length(self) -> int:
        """Prompt length in tokens."""
        return self.sparse.length

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """Token ids as numbers."""
        return tuple(self._values.tolist())

    def first_difference(self, ids: torch.Tensor, start: int) -> tuple[int, int, int] | None:
        """Return where other token ids first differ: position, this plan's id, the other; or None.

        ids: int64 [n], from position `start` on; those behind the prompt's end may be any.
        """
        wanted = self.tokens[0, start : start + len(ids)]
        if not len(wanted):
            return None  # decoding: no device is waited for
        found = ids[: len(wanted)].cpu()
        if torch.equal(wanted, found):
            return None
        at = int((wanted != found).nonzero()[0])
        return start + at, int(wanted[at]), int(found[at])

    @property
    def input_ids(self) -> torch.Tensor:
        """Token ids as int64 [1, length], as transformers takes them; a copy each time."""
        return self.tokens.clone()

    @cached_property
    def tokens(self) -> torch.Tensor:
        """The same, made once: not to be written to."""
        return torch.from_numpy(self._values.astype(np.int64))[None]

    @property
    def _values(self) -> NDArray[np.uint32]:
        return np.frombuffer(self.data, "<u4")

    def at(self, quality: str | int) -> "PromptPlan":
        """Return the plan at another quality: `best`, `balanced`, `fast`, or a level's number.

        Raises UsageError for what the index lacks.
        """
        bits = self.sparse.layout.levels
        sparse = replace(self.sparse, level=level_of(quality, bits))
        return replace(self, sparse=sparse, warnings=(*self.warnings, *level_notes(quality, bits)))

    @property
    def hits(self) -> int:
        """Segments that became spans."""
        return sum(outcome.kind == "span" for outcome in self.outcomes)

    @property
    def misses(self) -> int:
        """Segments that were looked up and are not in the index as given."""
        return sum(outcome.reason in ("not_indexed", "changed") for outcome in self.outcomes)

    @cached_property
    def layers(self) -> tuple[Density, ...]:
        """Visited score cells of each layer (DESIGN section 2)."""
        return tuple(layer_densities(self.sparse))

    @cached_property
    def density(self) -> Density:
        """Visited score cells of this prompt, all layers."""
        return sum(self.layers[1:], start=self.layers[0])

    @cached_property
    def short_glue_share(self) -> float:
        """Share of the plan's work that short glue between spans costs: a tile, few rows used."""
        spans = self.sparse.spans
        between = (spans[0].start, spans[-1].stop) if spans else (0, 0)
        short = [
            outcome
            for outcome in self.outcomes
            if outcome.kind == "glue"
            and between[0] <= outcome.start < outcome.stop <= between[1]
            and outcome.stop - outcome.start < TILE
        ]
        cells = sum(TILE * outcome.stop for outcome in short)
        layout = self.sparse.layout
        return cells * layout.layers * layout.heads / max(1, self.density.total.visited)

    def notes(self) -> list[str]:
        """Return warnings of the composition, and a hint where short glue is expensive."""
        notes = list(self.warnings)
        if self.short_glue_share > SHORT_GLUE_SHARE:
            notes.append(
                f"glue between spans takes {self.short_glue_share:.1%} of the plan: put separators "
                "into span_prefix or span_suffix, where they belong to the span"
            )
        return notes
