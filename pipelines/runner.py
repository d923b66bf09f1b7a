"""Running units on workers: retries, timeouts, stragglers, isolating a document at fault.

Plain Ray actors and one wait loop. A unit is tried three times; then it is split, until a single
document is left, which is recorded as failed and the build goes on. Units that failed go to the
back of the queue and run alone on their worker, so that one that kills it takes no other along.
When nothing waits, a unit that is late is given to an idle worker too: the first answer counts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sift_index.errors import BuildError, FormatError, StorageError, UsageError
from sift_index.formats.failures import FailedDocument
from sift_index.formats.receipts import Receipt
from sift_index.pipelines.actors import Answer, Workers
from sift_index.pipelines.corpus import Location
from sift_index.pipelines.events import BuildEvent
from sift_index.pipelines.failures import FailureBudget
from sift_index.pipelines.flight import Backlog, Flight, Task
from sift_index.pipelines.limits import LIMITS, Limits, Pace, is_straggling, unit_limit
from sift_index.pipelines.planner import Unit
from sift_index.pipelines.progress import BuildProgress
from sift_index.pipelines.slots import Slot, Slots, first_line

ATTEMPTS = 3
UNITS_IN_FLIGHT = 2
# Errors that no other try cures, anywhere: a damaged index, a setting that cannot be.
FATAL = (FormatError, UsageError)
# Errors of a place: a full disk, a mount that is read-only, a store that stays silent. Another
# worker may fare better; when there is none, neither will a retry.
LOCAL = (BuildError, StorageError)


class Plan(Protocol):
    """Units to run, read as they are needed; how many, and their tokens, are known before."""

    @property
    def tokens(self) -> int:
        """Tokens of all units."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Unit]: ...


@dataclass
class RunResult:
    """What a run of units came to; `failed` names a document once for each piece that failed.

    A unit that was done twice has one receipt. Counts: `retries` of units, `timeouts` among their
    causes, `reissued` stragglers.
    """

    receipts: list[Receipt] = field(default_factory=list)
    failed: list[FailedDocument] = field(default_factory=list)
    retries: int = 0
    timeouts: int = 0
    reissued: int = 0

    def add(self, other: "RunResult") -> None:
        """Take in what a further run came to."""
        self.receipts += other.receipts
        self.failed += other.failed
        self.retries += other.retries
        self.timeouts += other.timeouts
        self.reissued += other.reissued


@dataclass
class UnitRunner:
    """Keeps workers busy until every unit is committed or its documents are known to fail.

    `joined` are workers that run already. `wanted` says how many workers there is room for, given
    how many units wait; `admit` raises for the fingerprint of a worker that would build something
    else; `source` names a document's place for people.
    """

    workers: Workers
    wanted: Callable[[int], int]
    admit: Callable[[Any], None]
    source: Callable[[Location], str]
    build_digest: str
    progress: BuildProgress
    joined: Sequence[Any] = ()
    limits: Limits = LIMITS
    failures: FailureBudget = field(default_factory=FailureBudget)

    def run(self, plan: Plan) -> RunResult:
        """Run all units; raises BuildError when workers keep failing, or an error without cure."""
        self._begin(plan)
        while self._unsettled:
            self._hand_out()
            answers = self.workers.answers(self.limits.tick)
            # What a worker did before it died counts.
            for answer in sorted(answers, key=lambda answer: answer.died):
                self._take(answer)
            self._look()
        self._slots.release()
        return self._result

    def _begin(self, plan: Plan) -> None:
        self._total = self._unsettled = len(plan)
        self._backlog = Backlog(plan, self._total)
        self._slots = Slots(self.workers, self.admit, self.progress, self.limits)
        self._pace, self._done_tokens, self._result = Pace(), 0, RunResult()
        self._receipts: set[str] = set()
        self._next_look = self._next_hire = self.workers.now()
        self.progress.start(self._total, plan.tokens)
        for worker in self.joined:
            self._slots.add(worker)
        self._hire(self._total)

    def _hire(self, units: int) -> None:
        """Start workers for nodes that joined; closed slots keep their places."""
        self._next_hire = self.workers.now() + self.limits.hire_every
        for _ in range(self.wanted(units) - len(self._slots)):
            self._slots.add()

    def _hand_out(self) -> None:
        """Give every worker a unit, then a second one to have in hand while it does the first.

        Near the end there is no second one: it would wait behind a slow worker's first.
        """
        slots, backlog, now = self._slots, self._backlog, self.workers.now()
        while backlog.fresh and (slot := slots.free()):
            self._give(slot, backlog.take())
        if backlog.suspects:
            self._hand_out_suspects(now)
        while backlog.fresh and (slot := slots.free_for_second(backlog.fresh, self._pace)):
            self._give(slot, backlog.take())

    def _hand_out_suspects(self, now: float) -> None:
        alone = self._slots.ready_count == 1
        failed_before = now if alone else now - self.limits.avoid
        for slot in self._slots.idle():
            if task := self._backlog.take_suspect(slot.number, failed_before):
                self._give(slot, task)

    def _give(self, slot: Slot, task: Task) -> None:
        now = self.workers.now()
        flight = Flight(task, slot, slot.worker, now, None if slot.flights else now)
        slot.flights.append(flight)
        task.flights.append(flight)
        self._file(slot)
        self.workers.ask(slot.worker, "run_unit", flight, task.unit)

    def _file(self, slot: Slot) -> None:
        """Say how much of a slot is taken: all of it by a suspect, so that it dies alone."""
        alone = any(flight.task.suspect for flight in slot.flights)
        self._slots.file(slot, UNITS_IN_FLIGHT if alone else len(slot.flights))

    def _take(self, answer: Answer) -> None:
        """Take in what a worker answered, or that it died."""
        about = answer.about
        if about.worker is not about.slot.worker:
            return  # it was replaced meanwhile
        if not isinstance(about, Flight):
            self._slots.take(about, answer)
        elif answer.died:
            self._lost(about.slot, f"its worker died ({first_line(answer.error)})")
        else:
            self._landed(about, answer)

    def _landed(self, flight: Flight, answer: Answer) -> None:
        slot, task, now = flight.slot, flight.task, self.workers.now()
        slot.flights.remove(flight)
        task.flights.remove(flight)
        if slot.flights and slot.flights[0].started is None:
            slot.flights[0].started = now
        self._file(slot)
        if task.settled:
            return  # another worker was faster
        if answer.error is None:
            self._finished(flight, answer.value, now)
        elif isinstance(answer.error, FATAL):
            raise answer.error
        elif isinstance(answer.error, LOCAL):
            self._failed_here(slot, task, answer.error)
        else:
            self._raised(task, slot, first_line(answer.error))

    def _finished(self, flight: Flight, outcome: Any, now: float) -> None:
        task, slot = flight.task, flight.slot
        self._slots.finished(slot)
        # Others may find their receipt there, and would take no time.
        if flight.started is not None and not task.suspect and not task.reissued:
            for pace in (self._pace, slot.pace):
                pace.add(now - flight.started, task.tokens)
        if outcome.receipt is not None and outcome.receipt.unit not in self._receipts:
            self._receipts.add(outcome.receipt.unit)
            self._result.receipts.append(outcome.receipt)
        self._settle(task, outcome.failed)

    def _settle(self, task: Task, failed: Sequence[FailedDocument]) -> None:
        task.settled = True
        self._unsettled -= 1
        self._result.failed.extend(failed)
        self._done_tokens += task.tokens
        # Counted from what is left, because a split makes one unit into two.
        done = max(0, self._total - self._unsettled)
        self.progress.update(done, self._done_tokens, len(self._result.failed))
        self.failures.add(failed)

    def _failed_here(self, slot: Slot, task: Task, error: Exception) -> None:
        """Let others go on when one worker cannot write; raise what it said when it is the last."""
        if self._slots.ready_count < 2:
            raise error
        self._replace(slot, f"it cannot go on: {first_line(error)}", error)
        self._put_back(task)

    def _raised(self, task: Task, slot: Slot, reason: str) -> None:
        """Try a unit again; a worker on which nothing but errors come of new units is replaced."""
        slot.errors += not task.suspect
        if slot.errors >= self.limits.slot_errors:
            self._replace(slot, f"{slot.errors} units in a row failed; the last: {reason}")
        self._failed(task, slot, reason)

    def _lost(self, slot: Slot, why: str) -> None:
        """Have a new worker in the place of one that died, and put back what it had.

        The unit it was given first counts as tried, the other does not. That may be a mistake (an
        answer can be lost with the process), but not a second time: what was tried runs alone.
        """
        head = slot.flights[0].task if slot.flights else None
        blamed = None if head is None or head.settled else head
        self._replace(slot, why, own=blamed is None or not blamed.suspect, blamed=blamed)
        if blamed is not None:
            self._failed(blamed, slot, why)

    def _replace(
        self,
        slot: Slot,
        why: str,
        error: Exception | None = None,
        own: bool = True,
        blamed: Task | None = None,
    ) -> None:
        flights = slot.flights
        self._slots.replace(slot, why, error, own)
        for flight in reversed(flights):
            flight.task.flights.remove(flight)
            if flight.task is not blamed:
                self._put_back(flight.task)

    def _put_back(self, task: Task) -> None:
        if not task.settled and not task.flights:
            self._backlog.put_back(task)

    def _failed(self, task: Task, slot: Slot, reason: str) -> None:
        """Try a unit again, split it after the last try, give up on a single document.

        While another worker has the same unit, nothing is lost and nobody to blame.
        """
        if task.flights:
            return
        name = task.unit.id[:12]
        task.tries += 1
        task.failed_on, task.failed_at = slot.number, self.workers.now()
        if task.tries < ATTEMPTS:
            event = BuildEvent("retry", unit=name, tries=task.tries, host=slot.host, reason=reason)
            self.progress.note(event)
            self._result.retries += 1
            self._backlog.put_behind(task)
        elif len(task.unit.pieces) > 1:
            self.progress.note(BuildEvent("split", unit=name, reason=reason))
            self._split(task)
        else:
            source = self.source(task.unit.pieces[0].location)
            self.progress.note(BuildEvent("document_failed", source=source, reason=reason))
            self._settle(task, [FailedDocument(source, reason)])

    def _split(self, task: Task) -> None:
        self._unsettled += 1
        for half in task.unit.halves(self.build_digest):
            part = Task(half, failed_on=task.failed_on, failed_at=task.failed_at)
            self._backlog.put_behind(part)

    def _look(self) -> None:
        """Look, once a tick, at what takes too long and at nodes that joined."""
        now = self.workers.now()
        if now < self._next_look or not self._unsettled:
            return
        self._next_look = now + self.limits.tick
        for slot in self._slots.ready:
            self._check(slot, now)
        self._slots.tick(now)
        if len(self._backlog) and now >= self._next_hire:
            self._hire(len(self._backlog))
        if not len(self._backlog):
            self._reissue(now)

    def _check(self, slot: Slot, now: float) -> None:
        """Replace a worker that takes longer for a unit than it may."""
        if not slot.flights:
            return
        flight = slot.flights[0]
        limit = unit_limit(self.limits, slot.pace, self._pace, flight.task.tokens)
        if flight.seconds(now) <= limit:
            return
        unit = flight.task.unit.id[:12]
        self.progress.note(BuildEvent("timeout", unit=unit, host=slot.host, seconds=round(limit)))
        self._result.timeouts += 1
        self._lost(slot, f"it took longer than its limit of {limit:.0f} s on {slot.host}")

    def _reissue(self, now: float) -> None:
        """Give units that are late to idle workers too, the one that is at it longest first."""
        idle = self._slots.idle()
        if not idle:
            return
        flights = [flight for slot in self._slots.ready for flight in slot.flights]
        late = sorted(
            (flight for flight in flights if self._is_late(flight, now)),
            key=lambda flight: flight.handed,
        )
        for slot, flight in zip(idle, late, strict=False):
            flight.task.reissued = True
            self._result.reissued += 1
            self.progress.note(
                BuildEvent(
                    "straggler",
                    unit=flight.task.unit.id[:12],
                    host=flight.slot.host,
                    seconds=round(now - flight.handed),
                    again_on=slot.host,
                )
            )
            self._give(slot, flight.task)

    def _is_late(self, flight: Flight, now: float) -> bool:
        """Say whether a unit may be done twice: never one that failed, for it may kill again."""
        task = flight.task
        if task.settled or task.suspect or task.reissued:
            return False
        return is_straggling(self.limits, self._pace, flight.seconds(now), flight.tokens())
