"""A cluster of pretended workers in pretended time, for tests of the protocol without Ray.

Workers do their units one after the other and keep what they commit; what happens to each call is
decided by a function. An hour takes a millisecond, and the same script always ends the same.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from sift_index.errors import BuildError
from sift_index.formats.failures import FailedDocument
from sift_index.formats.identity import document_key
from sift_index.pipelines.actors import Answer
from sift_index.pipelines.corpus import Location
from sift_index.pipelines.documents import Piece
from sift_index.pipelines.limits import Limits
from sift_index.pipelines.planner import Unit, unit_id
from sift_index.pipelines.runner import RunResult, UnitRunner

DIGEST = "ab" * 16
TOKENS = 10
# More looks than any test needs.
FOR_EVER = 20_000


@dataclass(frozen=True)
class Fate:
    """What comes of a call after some seconds: ok, raise, die, lose (die once it committed), hang,
    full (a full disk). Two more of a start: nowhere (no place), other (another build)."""

    kind: str = "ok"
    seconds: float = 1.0


@dataclass(eq=False)
class Worker:
    """One pretended worker, the n-th that was started."""

    number: int
    alive: bool = True
    free_at: float = 0.0
    open: dict[int, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Host:
    """A pretended place."""

    host: str


@dataclass(frozen=True)
class Receipt:
    """A pretended receipt: which documents it proves."""

    unit: str
    documents: tuple[int, ...]


@dataclass(frozen=True)
class Outcome:
    """A pretended outcome of a unit."""

    receipt: Receipt | None
    failed: tuple[FailedDocument, ...] = ()


Script = Callable[[Worker, str, Unit | None], Fate]


class PretendedWorkers:
    """Implements `Workers`. `script` decides every call; `runs` counts calls by unit."""

    def __init__(self, script: Script) -> None:
        self.time = 0.0
        self.script = script
        self.started: list[Worker] = []
        self.committed: dict[str, Receipt] = {}
        self.runs: Counter[str] = Counter()
        self.computed: Counter[str] = Counter()
        self.stopped: list[Worker] = []
        self.looks = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._ready: list[Answer] = []
        self._number = count()

    def now(self) -> float:
        return self.time

    def start(self) -> Worker:
        self.started.append(Worker(len(self.started)))
        return self.started[-1]

    def stop(self, worker: Worker) -> None:
        self.stopped.append(worker)
        self._end(worker, "stopped")

    def ask(self, worker: Worker, method: str, about: Any, *arguments: Any) -> None:
        question = next(self._number)
        worker.open[question] = about
        if not worker.alive:
            return self._end(worker, "called when dead")
        unit = arguments[0] if arguments else None
        fate = self.script(worker, method, unit)
        if unit is not None:
            self.runs[unit.id] += 1
        if fate.kind in ("hang", "nowhere"):
            worker.free_at = float("inf") if unit is not None else worker.free_at
            return
        begin = max(self.time, worker.free_at)
        if begin == float("inf"):
            return
        worker.free_at = begin + fate.seconds if unit is not None else worker.free_at
        self._at(begin + fate.seconds, lambda: self._come(worker, question, method, unit, fate))

    def answers(self, seconds: float) -> list[Answer]:
        self.looks += 1
        assert self.looks < FOR_EVER, "the runner goes on for ever"
        end = self.time + seconds
        while self._events and not self._ready and self._events[0][0] <= end:
            self._advance()
        while self._events and self._events[0][0] <= self.time:
            self._advance()
        if not self._ready:
            self.time = end
        found, self._ready = self._ready, []
        return found

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        """Let something happen to the cluster at a point in time."""
        self._at(seconds, action)

    def lose(self, number: int) -> None:
        """Lose a worker with its node."""
        self._end(self.started[number], "its node left")

    def _at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._number), action))

    def _advance(self) -> None:
        self.time, _, action = heapq.heappop(self._events)
        action()

    def _come(
        self, worker: Worker, question: int, method: str, unit: Unit | None, fate: Fate
    ) -> None:
        if not worker.alive:
            return
        if fate.kind == "die":
            return self._end(worker, "died")
        if fate.kind == "raise":
            return self._answer(worker, question, error=ValueError("poison"))
        if fate.kind == "full":
            return self._answer(worker, question, error=BuildError("No space left; resume"))
        if unit is None:
            value = Host(f"host-{worker.number}") if method == "place" else fate.kind
            return self._answer(worker, question, value=value)
        known = unit.id in self.committed
        receipt = self._commit(unit)
        if fate.kind == "lose" and not known:
            return self._end(worker, "died")
        self._answer(worker, question, value=Outcome(receipt))

    def _commit(self, unit: Unit) -> Receipt:
        if unit.id not in self.committed:
            documents = tuple(int(piece.location.file) for piece in unit.pieces)
            self.committed[unit.id] = Receipt(unit.id, documents)
            self.computed[unit.id] += 1
        return self.committed[unit.id]

    def _answer(self, worker: Worker, question: int, **answer: Any) -> None:
        self._ready.append(Answer(worker.open.pop(question), **answer))

    def _end(self, worker: Worker, why: str) -> None:
        worker.alive = False
        for about in worker.open.values():
            self._ready.append(Answer(about, error=RuntimeError(why), died=True))
        worker.open.clear()


class Plan(list[Unit]):
    """Units with the number of their tokens."""

    @property
    def tokens(self) -> int:
        return sum(unit.tokens for unit in self)


class Recorder:
    """A progress that keeps what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.updates: list[tuple[int, int, int]] = []

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def note(self, message: str) -> None:
        self.notes.append(message)

    def start(self, units: int, tokens: int) -> None:
        self.size = (units, tokens)

    def update(self, units: int, tokens: int, failures: int) -> None:
        self.updates.append((units, tokens, failures))


def a_unit(*numbers: int, tokens: int = TOKENS) -> Unit:
    """A unit of documents that are numbers."""
    pieces = tuple(Piece(document_key([n]), tokens, Location(str(n), 0), 0) for n in numbers)
    return Unit(unit_id(pieces, DIGEST), pieces)


def singles(count: int) -> list[Unit]:
    """Units of one document each."""
    return [a_unit(number) for number in range(count)]


def refuse_others(fingerprint: Any) -> None:
    """Admit workers of this build."""
    if fingerprint == "other":
        raise BuildError("a worker would build something else; make every node the same")


@dataclass
class Build:
    """A pretended build: the workers, and what the runner said."""

    script: Script
    slots: int = 1
    limits: Limits = Limits()
    progress: Recorder = field(default_factory=Recorder)
    runner_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.workers = PretendedWorkers(self.script)

    def run(self, units: Iterable[Unit]) -> RunResult:
        runner = UnitRunner(
            workers=self.workers,
            wanted=lambda units: min(self.slots, max(1, units)),
            admit=refuse_others,
            source=lambda location: location.file,
            build_digest=DIGEST,
            progress=self.progress,
            limits=self.limits,
            **self.runner_options,
        )
        return runner.run(Plan(units))

    def noted(self, event: str) -> list[str]:
        """The events of one kind, and messages that begin so."""
        return [note for note in self.progress.notes if note.startswith((f"event={event}", event))]


def documents_of(result: RunResult) -> list[int]:
    """Documents that are committed, as often as the result names them."""
    receipts: list[Any] = list(result.receipts)
    return sorted(document for receipt in receipts for document in receipt.documents)


def failed_of(result: RunResult) -> dict[int, str]:
    """Failed documents with their reasons."""
    found = {int(failure.source): failure.reason for failure in result.failed}
    assert len(found) == len(result.failed)
    return found
