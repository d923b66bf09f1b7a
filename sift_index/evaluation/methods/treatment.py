"""What a method does to one prompt: how its attention runs, and how much of it that is.

A method turns a prompt's segments into a treatment. Sparse methods bring a plan; methods that reuse
stored KV bring an attention handler of their own.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from sift_index.adapters.transformers import sift_attention
from sift_index.kernels.api import Cells, Density
from sift_index.prompts import Segment
from sift_index.runtime.plan import PromptPlan


class Treatment(Protocol):
    """One prompt under one method."""

    @property
    def plan(self) -> PromptPlan | None:
        """The plan whose places are computed; None where the method has none."""

    @property
    def density(self) -> Density:
        """Visited score cells, known once the prompt has been prefilled."""

    def attention(self, model: Any) -> AbstractContextManager[None]:
        """Return the context in which the prompt is prefilled and its answers decoded."""


_WHOLE = Cells(1, 1)

Method = Callable[[Sequence[Segment]], Treatment]


class Dense:
    """Every causal cell is computed: what everything else is compared with."""

    plan = None

    @property
    def density(self) -> Density:
        """Nothing is left out, so there is nothing to count."""
        return Density(_WHOLE, _WHOLE, _WHOLE)

    def attention(self, model: Any) -> AbstractContextManager[None]:
        """Leave the model as it is."""
        return nullcontext()


class Sparse:
    """Only the cells a plan marks are computed."""

    def __init__(self, plan: PromptPlan) -> None:
        self.plan = plan

    @property
    def density(self) -> Density:
        """Visited cells of the plan."""
        return self.plan.density

    def attention(self, model: Any) -> AbstractContextManager[None]:
        """Run the prompt under the plan."""
        return sift_attention(model, self.plan)


def spans_of(prompt: Sequence[Segment]) -> list[tuple[int, int]]:
    """Return [start, stop) of every document, as a composed prompt would place its spans.

    Glue, empty segments and a document at position 0 are none (DESIGN section 3).
    """
    found, at = [], 0
    for segment in prompt:
        stop = at + len(segment.ids)
        if not segment.glue and 0 < at < stop:
            found.append((at, stop))
        at = stop
    return found
