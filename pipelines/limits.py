"""How long things may take, and how often they may fail: every number of the protocol, as rules.

Pure functions of what was observed. Paces are seconds a token, and a worker is judged by its own
pace, so that a slow device among fast ones is slow and not suspicious.
"""

from collections import deque
from dataclasses import dataclass
from statistics import median

# Units whose pace the median of the build is taken from: documents get longer along the plan.
REMEMBERED = 256


@dataclass(frozen=True)
class Limits:
    """The numbers of the protocol; all times are seconds.

    tick: between two looks at everything that may take too long. A unit may take `unit_seconds` if
    given, else `unit_floor` + `unit_factor` times what the slowest finished unit would have taken
    for as many tokens; `unit_unknown` while fewer than `enough` units are finished. loading: from a
    worker's start on a node until it has its model. nothing_alive: without a worker that has a
    place, before a build gives up. A unit is a straggler that takes longer than `straggler_floor`
    and `straggler_factor` times the median of the build. avoid: for how long a unit that failed
    waits for another worker than the one it failed on. A worker that raises for `slot_errors` new
    units in a row is replaced. A slot is closed after `slot_troubles` in a
    row, a build ends after `troubles` (or `troubles_per_slot` times the slots, if that is more)
    without a finished unit between them; before a restart a slot rests, at most `longest_rest`.
    hire_every: between two looks for nodes that joined.
    """

    tick: float = 1.0
    unit_seconds: float | None = None
    unit_floor: float = 600.0
    unit_factor: float = 20.0
    unit_unknown: float = 6 * 3600.0
    enough: int = 3
    loading: float = 1800.0
    nothing_alive: float = 900.0
    straggler_floor: float = 5.0
    straggler_factor: float = 3.0
    avoid: float = 60.0
    slot_errors: int = 3
    slot_troubles: int = 5
    troubles: int = 30
    troubles_per_slot: int = 3
    longest_rest: float = 10.0
    hire_every: float = 10.0


LIMITS = Limits()


class Pace:
    """Seconds a token of finished units: how many were seen, the slowest, the median lately."""

    def __init__(self) -> None:
        self.count = 0
        self.slowest = 0.0
        self._seconds, self._tokens = 0.0, 0
        self._last: deque[float] = deque(maxlen=REMEMBERED)

    def add(self, seconds: float, tokens: int) -> None:
        """Take in a finished unit."""
        pace = seconds / max(1, tokens)
        self.count += 1
        self.slowest = max(self.slowest, pace)
        self._seconds, self._tokens = self._seconds + seconds, self._tokens + tokens
        self._last.append(pace)

    @property
    def mean(self) -> float:
        """Over all units; 0 before the first."""
        return self._seconds / max(1, self._tokens)

    @property
    def median(self) -> float:
        """The middle of the last units; 0 before the first."""
        return median(self._last) if self._last else 0.0


def unit_limit(limits: Limits, own: Pace, build: Pace, tokens: int) -> float:
    """Return how many seconds a worker may take for a unit.

    `own` is the pace of this worker, `build` that of all; the latter counts for a worker that has
    not shown yet what it can do.
    """
    if limits.unit_seconds is not None:
        return limits.unit_seconds
    if own.count >= limits.enough:
        return limits.unit_floor + limits.unit_factor * own.slowest * tokens
    if build.count >= limits.enough:
        return limits.unit_floor + limits.unit_factor * build.slowest * tokens
    return limits.unit_unknown


def is_straggling(limits: Limits, build: Pace, seconds: float, tokens: int) -> bool:
    """Say whether work on so many tokens takes so long that an idle worker may try it too."""
    usual = limits.straggler_factor * build.median * tokens
    return build.count > 0 and seconds > max(limits.straggler_floor, usual)


def spare(ready: int, own: Pace, build: Pace) -> float:
    """Return how many units must wait for a worker to be given a second one.

    One for each other worker that may be idle soon, and for a slower one as many more as the others
    do while it is at its first: near the end its second would be the last of the build.
    """
    if ready < 2:
        return 0.0
    return ready * max(1.0, own.mean / build.mean if build.mean else 1.0)


def rest(limits: Limits, troubles: int) -> float:
    """Return how long a slot rests after its n-th trouble in a row: 0, 1, 2, 4, 8 seconds."""
    return 0.0 if troubles < 2 else min(limits.longest_rest, 2.0 ** (troubles - 2))


def most_troubles(limits: Limits, slots: int) -> int:
    """Return the troubles in a row that a build of so many slots survives.

    A cluster may lose a rack at once, and a document that kills its worker takes three tries a
    halving until it is alone.
    """
    return max(limits.troubles, limits.troubles_per_slot * slots)
