"""The search: which thresholds to measure, in which order, and when to stop.

It knows nothing of models. A measurement costs minutes, so the ladder is walked from dense to
sparse and left where the target fails first; bisection then works in the gap.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sift_index.errors import UsageError
from sift_index.evaluation.metrics import Interval

BISECTIONS = 3
LA_SHARE = 0.1  # of what the target allows may be spent on LA
LA_LADDER = (0.00005, 0.0001, 0.0002, 0.0004, 0.0008, 0.0016, 0.0032)
DIGITS = 3
ALL_ON = 0.0


@dataclass(frozen=True)
class Target:
    """How close to dense is close enough: bounds of mean KL in nats and of mean top-1 agreement."""

    max_kl: float | None = None
    min_top1: float | None = None

    def __post_init__(self) -> None:
        if self.max_kl is None and self.min_top1 is None:
            raise UsageError("expected a target, found none; give --max-kl, --min-top1 or both")
        if self.max_kl is not None and not 0 < self.max_kl < math.inf:
            raise UsageError(f"expected max_kl as nats above 0, found {self.max_kl}")
        if self.min_top1 is not None and not 0 < self.min_top1 <= 1:
            raise UsageError(
                f"expected min_top1 as a share above 0 and up to 1, found {self.min_top1}"
            )

    def __str__(self) -> str:
        """Return the bounds that are given, for people."""
        kl = [] if self.max_kl is None else [f"mean KL <= {self.max_kl:g} nats"]
        top1 = [] if self.min_top1 is None else [f"mean top-1 >= {self.min_top1:g}"]
        return " and ".join(kl + top1)

    def excess(self, kl: float, top1: float) -> float:
        """Return by what share of the allowed loss the worst bound is missed; met up to 0."""
        over = [] if self.max_kl is None else [kl / self.max_kl - 1]
        if self.min_top1 is not None:
            over.append((self.min_top1 - top1) / max(1 - self.min_top1, 1e-3))
        return max(over)

    def for_local(self) -> "Target":
        """Return the target of LA alone: a tenth of the KL (of the lost top-1 without one)."""
        if self.max_kl is not None:
            return Target(max_kl=LA_SHARE * self.max_kl)
        return Target(min_top1=1 - LA_SHARE * (1 - (self.min_top1 or 1.0)))


@dataclass(frozen=True)
class Measured:
    """Means over prompts: KL in nats and top-1 with intervals, densities as shares."""

    kl: Interval
    top1: Interval
    ca_density: float
    density: float


@dataclass(frozen=True)
class TunePoint:
    """Thresholds and what was measured under them; a ca_threshold of `ALL_ON` has no page off."""

    ca_threshold: float
    la_threshold: float
    ca_density: float
    density: float
    kl: Interval
    top1: Interval
    meets: bool


Measure = Callable[[float, float], Measured]


class Search:
    """Keeps every point it measured: `local` with all pages on, `points` of the CA search."""

    def __init__(self, measure: Measure, target: Target) -> None:
        self.local: list[TunePoint] = []
        self.points: list[TunePoint] = []
        self._measure = measure
        self._target = target

    def local_threshold(self, ladder: Sequence[float] = LA_LADDER) -> float:
        """Return the highest LA threshold of a ladder that spends little of the target.

        The lowest where none does.
        """
        for la in sorted(ladder, reverse=True):
            self.local.append(self._point(ALL_ON, la, self._target.for_local()))
            if self.local[-1].meets:
                break
        return self.local[-1].la_threshold

    def cross_threshold(self, candidates: Sequence[float], la: float) -> None:
        """Measure CA thresholds from dense to sparse until the target fails, then bisect."""
        good: float | None = None
        for ca in sorted(candidates):
            self.points.append(self._point(ca, la, self._target))
            if not self.points[-1].meets:
                break
            good = ca
        if good is not None and not self.points[-1].meets:
            self.points += self._between(good, ca, la)

    @property
    def best(self) -> TunePoint | None:
        """The sparsest CA that meets the target, or None."""
        met = (point for point in self.points if point.meets)
        return min(met, key=lambda point: point.ca_density, default=None)

    @property
    def closest(self) -> TunePoint:
        """The best point, or the one that misses the target by least."""
        return self.best or min(self.points, key=self._excess)

    def _between(self, good: float, bad: float, la: float) -> Iterator[TunePoint]:
        for _ in range(BISECTIONS):
            middle = rounded(math.sqrt(good * bad))
            if not good < middle < bad:
                return
            point = self._point(middle, la, self._target)
            yield point
            good, bad = (middle, bad) if point.meets else (good, middle)

    def _excess(self, point: TunePoint) -> float:
        return self._target.excess(point.kl.mean, point.top1.mean)

    def _point(self, ca: float, la: float, target: Target) -> TunePoint:
        found = self._measure(ca, la)
        meets = target.excess(found.kl.mean, found.top1.mean) <= 0
        return TunePoint(ca, la, found.ca_density, found.density, found.kl, found.top1, meets)


def rounded(value: float, digits: int = DIGITS) -> float:
    """Return a number with a few significant digits, as files and tables show it."""
    return float(f"{value:.{digits}g}")
