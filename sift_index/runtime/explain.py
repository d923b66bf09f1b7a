"""Why a prompt is as sparse as it is: what each segment became, and where scores are left."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from sift_index.runtime.crossover import Crossover
from sift_index.runtime.gain import why_little
from sift_index.runtime.plan import PromptPlan, SegmentOutcome

REASONS = {
    "indexed": "in the index",
    "declared_glue": "declared as glue",
    "not_indexed": "not in the index with these tokens",
    "changed": "changed: the index holds other tokens for it",
    "no_prefix": "at the very start, where the sink is: put a prefix in front",
    "empty": "no tokens",
}


@dataclass(frozen=True)
class LayerShares:
    """Shares of causal scores that are computed: of all, inside documents, between them."""

    density: float
    la: float
    ca: float


@dataclass(frozen=True)
class Explanation:
    """What a plan does with a prompt. `most`: dense attention's scores over this plan's.

    dense: whether the prompt runs dense all the same, because sparse does not pay on this device.
    No implementation can be faster than `most` times dense attention; how near one comes is
    measured by `sift-index bench kernels`.
    """

    tokens: int
    level: int
    hits: int
    misses: int
    segments: tuple[SegmentOutcome, ...]
    total: LayerShares
    layers: tuple[LayerShares, ...]
    notes: tuple[str, ...]
    dense: bool = False

    @property
    def most(self) -> float:
        """How many times fewer scores than dense attention; 1 for an empty prompt."""
        return 1 / self.total.density if self.total.density else 1.0

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; each segment with its reason in words."""
        segments = [
            {**asdict(one), "tokens": one.stop - one.start, "why": REASONS[one.reason]}
            for one in self.segments
        ]
        return {**asdict(self), "segments": segments, "most": self.most}


def explain(
    plan: PromptPlan, crossover: Crossover | None = None, elsewhere: Iterable[Crossover] = ()
) -> Explanation:
    """Explain a plan: segments, densities by layer, notes, and why it gains little if it does.

    crossover: the table that decides whether the prompt runs dense; None for sparse always.
    elsewhere: without it, tables of other devices, for what they say about so short a prompt.
    """
    decision = None if crossover is None else crossover.decide(plan.sparse)
    dense = decision is not None and decision.dense
    shares = [
        LayerShares(one.total.share, one.la.share, one.ca.share)
        for one in (plan.density, *plan.layers)
    ]
    return Explanation(
        tokens=plan.length,
        level=plan.sparse.level,
        hits=plan.hits,
        misses=plan.misses,
        segments=plan.outcomes,
        total=shares[0],
        layers=tuple(shares[1:]),
        notes=(
            *plan.notes(),
            *([str(decision)] if dense else []),
            *why_little(plan, elsewhere if crossover is None else (crossover,)),
        ),
        dense=dense,
    )
