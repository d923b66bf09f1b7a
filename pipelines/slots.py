"""The places of workers in a build: started, loaded, replaced when they fail, closed in the end.

The runner sees those that are ready. A worker that has no place in the cluster (its node is gone)
waits for one and holds up nobody; a slot whose workers fail one after the other is closed, so that
one broken node does not eat the build.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Any

from sift_index.errors import BuildError, SiftError
from sift_index.pipelines.actors import Answer, Workers
from sift_index.pipelines.events import BuildEvent
from sift_index.pipelines.flight import LOOK_AHEAD, Flight
from sift_index.pipelines.limits import Limits, Pace, most_troubles, rest, spare
from sift_index.pipelines.progress import BuildProgress

RESUME = "Committed units stay: run the same command again to resume"


class Phase(Enum):
    """PENDING has no place yet, LOADING has one and loads, RESTING has no worker for a moment."""

    PENDING = "pending"
    LOADING = "loading"
    READY = "ready"
    RESTING = "resting"
    CLOSED = "closed"


@dataclass(eq=False, slots=True)
class Slot:
    """One worker at a time. `since`: when its phase began, or for RESTING, when it ends.

    `flights` are what it works on, in the order it was given; `troubles` those in a row that are
    its own fault, `errors` the units in a row that its worker raised for; `pace` how fast it is.
    """

    number: int
    worker: Any = None
    phase: Phase = Phase.RESTING
    since: float = 0.0
    host: str = "an unknown node"
    flights: list[Flight] = field(default_factory=list)
    troubles: int = 0
    errors: int = 0
    pace: Pace = field(default_factory=Pace)


@dataclass(frozen=True, slots=True)
class Start:
    """What a worker was asked before it got work: where it is, or what it would build."""

    slot: Slot
    worker: Any
    method: str


class Slots:
    """All slots of a build. `admit` raises for a worker that would build something else."""

    def __init__(
        self,
        workers: Workers,
        admit: Callable[[Any], None],
        progress: BuildProgress,
        limits: Limits,
    ) -> None:
        self._workers, self._admit, self._progress = workers, admit, progress
        self._limits = limits
        self._all: list[Slot] = []
        self._ready: dict[Slot, None] = {}
        self._free: tuple[dict[Slot, None], ...] = ({}, {})  # by units in flight
        self._in_a_row = 0
        self._alive_at = workers.now()

    def __len__(self) -> int:
        return len(self._all)

    @property
    def ready(self) -> list[Slot]:
        """Slots whose worker takes units."""
        return list(self._ready)

    @property
    def ready_count(self) -> int:
        """How many workers take units."""
        return len(self._ready)

    def free(self) -> Slot | None:
        """Return the slot that has waited longest with nothing in flight."""
        return next(iter(self._free[0]), None)

    def free_for_second(self, waiting: int, build: Pace) -> Slot | None:
        """Return a slot to have a second unit in hand, if enough of them wait for that.

        Only some are looked at, and those that are too slow for now not soon again.
        """
        half = self._free[1]
        for slot in list(islice(half, LOOK_AHEAD)):
            if waiting > spare(len(self._ready), slot.pace, build):
                return slot
            del half[slot]
            half[slot] = None
        return None

    def idle(self) -> list[Slot]:
        """Slots with nothing in flight, the fastest first."""
        return sorted(self._free[0], key=lambda slot: slot.pace.slowest)

    def file(self, slot: Slot, places: int) -> None:
        """Say how many places of a slot are taken; one that is not ready has none to give."""
        for free in self._free:
            free.pop(slot, None)
        if slot.phase is Phase.READY and places < len(self._free):
            self._free[places][slot] = None

    def add(self, worker: Any = None) -> None:
        """Open a slot for a worker that runs, or start one."""
        slot = Slot(len(self._all))
        self._all.append(slot)
        self._start(slot, worker)

    def finished(self, slot: Slot) -> None:
        """Take note that a slot finished a unit."""
        slot.troubles = slot.errors = self._in_a_row = 0

    def take(self, start: Start, answer: Answer) -> None:
        """Take in what a starting worker said; units go to it once it would build the same."""
        slot = start.slot
        if answer.died:
            self.replace(slot, f"it died ({first_line(answer.error)})")
        elif isinstance(answer.error, SiftError) and self._is_last(slot):
            raise answer.error
        elif answer.error is not None:
            self.replace(slot, f"it cannot start: {first_line(answer.error)}", answer.error)
        elif start.method == "place":
            slot.host = answer.value.host
            self._move(slot, Phase.LOADING)
            self._ask(slot, "fingerprint")
        else:
            self._join(slot, answer.value)

    def replace(
        self, slot: Slot, why: str, error: Exception | None = None, own: bool = True
    ) -> None:
        """Stop a slot's worker and start another, after a rest if it was not the first trouble.

        Its flights are for the caller to take back. `own` says that the slot may be at fault, not
        the unit. Raises `error` or BuildError when the build cannot go on.
        """
        self._progress.note(BuildEvent("worker_lost", host=slot.host, reason=why))
        self._stop(slot)
        self._in_a_row += 1
        slot.troubles += own
        if self._in_a_row > most_troubles(self._limits, len(self._all)):
            raise _same_or(
                error,
                f"workers failed {self._in_a_row} times in a row without finishing a unit; the "
                f"last: on {slot.host}, {why}. {RESUME} once the cause is cured (memory?)",
            )
        if slot.troubles >= self._limits.slot_troubles and self._ready:
            return self._close(slot, f"it failed {slot.troubles} times in a row; the last: {why}")
        delay = rest(self._limits, slot.troubles) if own else 0.0
        slot.since = self._workers.now() + delay
        if not delay:
            self._start(slot)

    def tick(self, now: float) -> None:
        """Start workers that have rested, replace those that load for too long.

        Raises BuildError when no worker has had a place for too long.
        """
        for slot in self._all:
            if slot.phase is Phase.RESTING and slot.since <= now:
                self._start(slot)
            elif slot.phase is Phase.LOADING and now - slot.since > self._limits.loading:
                self.replace(slot, f"it did not load within {self._limits.loading:.0f} s")
        if any(slot.phase in (Phase.READY, Phase.LOADING) for slot in self._all):
            self._alive_at = now
        elif now - self._alive_at > self._limits.nothing_alive:
            raise BuildError(
                f"no worker has had a place in the cluster for {now - self._alive_at:.0f} s: its "
                f"nodes are gone, or busy with other work (`ray status`). {RESUME} once there are "
                "nodes again"
            )

    def release(self) -> None:
        """Give up the slots: workers that are busy are stopped, the others live on."""
        for slot in self._all:
            if slot.flights:
                self._stop(slot)
            slot.worker = None

    def _join(self, slot: Slot, fingerprint: Any) -> None:
        try:
            self._admit(fingerprint)
        except SiftError as error:
            self._stop(slot)
            self._close(slot, str(error))
            if self._is_last(slot):
                raise
            return
        self._move(slot, Phase.READY)
        self._ready[slot] = None
        self.file(slot, 0)
        self._progress.note(BuildEvent("worker_joined", host=slot.host))

    def _start(self, slot: Slot, worker: Any = None) -> None:
        slot.worker = self._workers.start() if worker is None else worker
        self._move(slot, Phase.PENDING)
        self._ask(slot, "place")

    def _ask(self, slot: Slot, method: str) -> None:
        self._workers.ask(slot.worker, method, Start(slot, slot.worker, method))

    def _stop(self, slot: Slot) -> None:
        if slot.worker is not None:
            self._workers.stop(slot.worker)
        slot.worker, slot.flights, slot.errors = None, [], 0
        self._ready.pop(slot, None)
        self._move(slot, Phase.RESTING)
        self.file(slot, 0)

    def _is_last(self, slot: Slot) -> bool:
        return all(other is slot or other.phase is Phase.CLOSED for other in self._all)

    def _close(self, slot: Slot, why: str) -> None:
        self._move(slot, Phase.CLOSED)
        left = sum(other.phase is not Phase.CLOSED for other in self._all)
        event = BuildEvent("worker_given_up", host=slot.host, left=left, reason=why)
        self._progress.note(event)

    def _move(self, slot: Slot, phase: Phase) -> None:
        slot.phase, slot.since = phase, self._workers.now()


def first_line(error: BaseException | None) -> str:
    """Return the name of an error and how it begins; those of Ray are pages long."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _same_or(error: Exception | None, message: str) -> SiftError:
    """Return an error that says what to do already, or one with a message."""
    return error if isinstance(error, SiftError) else BuildError(message)
