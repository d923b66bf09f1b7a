"""Who works on what since when: units in play, and the copies of them that workers have."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sift_index.pipelines.planner import Unit

if TYPE_CHECKING:
    from sift_index.pipelines.slots import Slot

# How many of those that wait are looked at, for one that fits: a look costs the same in any build.
LOOK_AHEAD = 16


@dataclass(eq=False, slots=True)
class Task:
    """A unit until it is settled: committed, split, or its document known to fail.

    `suspect` since it failed or is a part of one that did: it runs alone on its worker. `flights`
    are its copies at work, two when it was given to a second worker because the first is late.
    """

    unit: Unit
    tries: int = 0
    suspect: bool = False
    failed_on: int | None = None
    failed_at: float = 0.0
    flights: list[Flight] = field(default_factory=list)
    reissued: bool = False
    settled: bool = False
    tokens: int = field(init=False)  # of the unit, which counts them every time

    def __post_init__(self) -> None:
        self.tokens = self.unit.tokens


@dataclass(eq=False, slots=True)
class Flight:
    """A copy of a unit on a worker. The clock starts once nothing is in front of it there."""

    task: Task
    slot: Slot
    worker: Any
    handed: float
    started: float | None = None

    def seconds(self, now: float) -> float:
        """Return how long it is worked on, or how long it waits."""
        return now - (self.handed if self.started is None else self.started)

    def tokens(self) -> int:
        """Return the tokens the worker has to do until it is done, since `seconds` runs."""
        if self.started is not None:
            return self.task.tokens
        ahead = self.slot.flights[: self.slot.flights.index(self) + 1]
        return sum(flight.task.tokens for flight in ahead)


class Backlog:
    """Units that wait: those of the plan first, the suspects behind them.

    So one that kills its worker cannot keep the others from being done. The plan is read as far as
    it is needed.
    """

    def __init__(self, units: Iterable[Unit], count: int) -> None:
        self._plan = iter(units)
        self._unread = count
        self._returned: deque[Task] = deque()
        self._suspects: deque[Task] = deque()

    def __len__(self) -> int:
        return self.fresh + self.suspects

    @property
    def fresh(self) -> int:
        """How many units wait that have not failed."""
        return self._unread + len(self._returned)

    @property
    def suspects(self) -> int:
        """How many units wait that failed, or are parts of one."""
        return len(self._suspects)

    def take(self) -> Task:
        """Return the next unit that has not failed; there must be one."""
        if self._returned:
            return self._returned.popleft()
        self._unread -= 1
        return Task(next(self._plan))

    def take_suspect(self, slot: int, failed_before: float) -> Task | None:
        """Return a suspect for a slot: one that failed elsewhere, or before a point in time."""
        for place, task in enumerate(self._suspects):
            if place == LOOK_AHEAD:
                break
            if task.failed_on != slot or task.failed_at <= failed_before:
                del self._suspects[place]
                return task
        return None

    def put_back(self, task: Task) -> None:
        """Take back a unit through no fault of its own: it is the next of its kind."""
        (self._suspects if task.suspect else self._returned).appendleft(task)

    def put_behind(self, task: Task) -> None:
        """Take back a unit that failed: it waits behind all others."""
        task.suspect = True
        self._suspects.append(task)
