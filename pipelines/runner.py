"""Running units on workers: retries, replacing dead workers, isolating a document at fault.

Plain Ray actors and one wait loop. A unit is tried three times; then it is split, until a single
document is left, which is recorded as failed and the build goes on. Units that failed go to the
back of the queue, so that one that kills its worker cannot keep the others from being done.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from sift_index.errors import BuildError, FormatError, StorageError, UsageError
from sift_index.formats.failures import FailedDocument
from sift_index.formats.receipts import Receipt
from sift_index.pipelines.planner import Unit
from sift_index.pipelines.progress import BuildProgress

ATTEMPTS = 3
# Isolating a document that kills its worker takes three deaths a halving.
DEATHS_IN_A_ROW = 30
UNITS_IN_FLIGHT = 2
# Errors that another try cannot cure: a full disk, a damaged index, a store that stays silent.
FATAL = (BuildError, FormatError, StorageError, UsageError)


@dataclass
class RunResult:
    """What a run of units came to; `failed` names a document once for each piece that failed."""

    receipts: list[Receipt] = field(default_factory=list)
    failed: list[FailedDocument] = field(default_factory=list)
    retries: int = 0

    def add(self, other: "RunResult") -> None:
        """Take in what a further run came to."""
        self.receipts += other.receipts
        self.failed += other.failed
        self.retries += other.retries


@dataclass
class UnitRunner:
    """Keeps workers busy until every unit is committed or its documents are known to fail.

    Workers have the methods of `BuildWorker`. `workers` is changed in place when one dies.
    """

    start_worker: Callable[[], Any]
    workers: list[Any]
    source: Callable[[Any], str]
    build_digest: str
    progress: BuildProgress

    def run(self, units: Iterable[Unit]) -> RunResult:
        """Run all units; raises BuildError when workers keep dying, or an error without cure."""
        self._pending = deque(units)
        self._total = len(self._pending)
        self._flight: dict[Any, tuple[int, Unit]] = {}
        self._joining: dict[Any, int] = {}
        self._attempts: Counter[str] = Counter()
        self._suspects: set[str] = set()
        self._deaths = self._done_tokens = 0
        self._result = RunResult()
        self.progress.start(self._total, sum(unit.tokens for unit in self._pending))
        while self._pending or self._flight:
            self._fill()
            ready, _ = ray.wait([*self._flight, *self._joining], num_returns=1)
            self._settle(ready[0])
        return self._result

    def _fill(self) -> None:
        """Hand units to the workers with the least in flight."""
        joining = set(self._joining.values())
        load = {number: 0 for number in range(len(self.workers)) if number not in joining}
        for number, unit in self._flight.values():
            load[number] += self._share(unit)
        while self._pending and load:
            unit, worker = self._pending[0], min(load, key=lambda number: load[number])
            if load[worker] + self._share(unit) > UNITS_IN_FLIGHT:
                return
            load[worker] += self._share(self._pending.popleft())
            self._flight[self.workers[worker].run_unit.remote(unit)] = (worker, unit)

    def _share(self, unit: Unit) -> int:
        """Return the places a unit takes: all once it failed, so that it dies alone if it does."""
        return UNITS_IN_FLIGHT if unit.id in self._suspects else 1

    def _settle(self, reference: Any) -> None:
        """Take in what a worker answered, or that it died."""
        worker = self._joining.get(reference)
        if worker is None:
            worker = self._flight[reference][0]
        try:
            answer = ray.get(reference)
        except RayTaskError as error:
            self._raised(reference, error.cause)
        except RayError as death:
            self._lost(worker, death)
        else:
            self._answered(reference, answer)

    def _answered(self, reference: Any, answer: Any) -> None:
        if self._joining.pop(reference, None) is not None:
            if answer.build_digest != self.build_digest:
                raise BuildError(
                    f"expected a worker of build {self.build_digest}, found one of "
                    f"{answer.build_digest}; make model and software the same on every node"
                )
            return
        _, unit = self._flight.pop(reference)
        self._deaths = 0
        if answer.receipt is not None:
            self._result.receipts.append(answer.receipt)
        self._result.failed.extend(answer.failed)
        self._report(unit)

    def _raised(self, reference: Any, error: Exception) -> None:
        if reference in self._joining or isinstance(error, FATAL):
            raise error from None
        _, unit = self._flight.pop(reference)
        self._again(unit, f"{type(error).__name__}: {error}")

    def _lost(self, worker: int, death: Exception) -> None:
        """Start a new worker in the place of a dead one and put back what it had in flight.

        The unit it was given first counts as tried, the other does not. That may be a mistake (an
        answer can be lost with the process), but not a second time: what was tried runs alone.
        """
        self._deaths += 1
        if self._deaths > DEATHS_IN_A_ROW:
            raise BuildError(
                f"workers died {self._deaths} times in a row without finishing a unit; the last: "
                f"{death}. Committed units stay; cure the cause (memory?) and run the same command"
            )
        had = [unit for number, unit in self._flight.values() if number == worker]
        self._flight = {ref: held for ref, held in self._flight.items() if held[0] != worker}
        self._joining = {ref: number for ref, number in self._joining.items() if number != worker}
        self.workers[worker] = self.start_worker()
        # It gets units once it answers: where a node is gone there may be no place for it.
        self._joining[self.workers[worker].fingerprint.remote()] = worker
        self._pending.extendleft(reversed(had[1:]))
        for unit in had[:1]:
            self._again(unit, f"its worker died ({type(death).__name__})")

    def _again(self, unit: Unit, reason: str) -> None:
        """Try a unit again, split it after the last try, give up on a single document."""
        self._attempts[unit.id] += 1
        if self._attempts[unit.id] < ATTEMPTS:
            self.progress.note(f"unit {unit.id[:12]} is tried again: {reason}")
            self._result.retries += 1
            self._put_back(unit)
        elif len(unit.pieces) > 1:
            self.progress.note(f"unit {unit.id[:12]} is split to isolate a document: {reason}")
            self._put_back(*unit.halves(self.build_digest))
        else:
            source = self.source(unit.pieces[0].location)
            self.progress.note(f"{source} failed: {reason}")
            self._result.failed.append(FailedDocument(source, reason))
            self._report(unit)

    def _put_back(self, *units: Unit) -> None:
        self._suspects.update(unit.id for unit in units)
        self._pending.extend(units)

    def _report(self, unit: Unit) -> None:
        # Counted from what is left, because a split makes one unit into two.
        left = len(self._pending) + len(self._flight)
        self._done_tokens += unit.tokens
        done = max(0, self._total - left)
        self.progress.update(done, self._done_tokens, len(self._result.failed))
