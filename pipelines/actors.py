"""What the runner asks of workers, and Ray behind it: everything that a test of it replaces.

Questions are answered in any order, and whoever asks says what the question is about. All answers
that are there are taken at once: looking costs as much as there are open questions, so it is done
rarely enough to cost a small part of a core however many there are.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import ray
from ray.exceptions import RayError, RayTaskError

# After an answer, others are waited for this many times as long as looking for them takes, and no
# longer than these seconds.
PAUSE, LONGEST_PAUSE = 4.0, 0.1


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a question: a value, an error of the worker's code, or that the worker died."""

    about: Any
    value: Any = None
    error: Exception | None = None
    died: bool = False


class Workers(Protocol):
    """Workers with the methods of `BuildWorker`, and the clock they are watched by."""

    def now(self) -> float:
        """Return a time in seconds that never goes back."""

    def start(self) -> Any:
        """Start a worker, which may have to wait for a place in the cluster."""

    def stop(self, worker: Any) -> None:
        """End a worker, whatever it does."""

    def ask(self, worker: Any, method: str, about: Any, *arguments: Any) -> None:
        """Call a method of a worker; the answer comes by `answers`."""

    def answers(self, seconds: float) -> list[Answer]:
        """Return all answers that are there; wait for the first one, but not longer than that."""


class RayWorkers:
    """Workers that are Ray actors; `running` are those that were started and not stopped."""

    def __init__(self, start: Callable[[], Any], kill: Callable[[Any], None] = ray.kill) -> None:
        self._start, self._kill = start, kill
        self._running: dict[int, Any] = {}
        self._open: dict[Any, Any] = {}
        self._cost = 0.0

    @property
    def running(self) -> list[Any]:
        """The workers there are, in the order they were started."""
        return list(self._running.values())

    def now(self) -> float:
        """Return the monotonic clock."""
        return time.monotonic()

    def start(self) -> Any:
        """Start an actor."""
        worker = self._start()
        self._running[id(worker)] = worker
        return worker

    def stop(self, worker: Any) -> None:
        """Kill an actor; its questions are answered by its death."""
        if self._running.pop(id(worker), None) is not None:
            self._kill(worker)

    def stop_all(self) -> None:
        """Kill all actors that are left."""
        for worker in self.running:
            self.stop(worker)

    def first(self, method: str, seconds: float) -> Answer | None:
        """Ask all workers the same; return the first answer, None when it takes too long.

        Workers that die are forgotten; the death of the last one is the answer.
        """
        for worker in self.running:
            self.ask(worker, method, worker)
        try:
            return self._first(self.now() + seconds)
        finally:
            self._open.clear()  # later answers are no news

    def _first(self, end: float) -> Answer | None:
        while (left := end - self.now()) > 0:
            for answer in self.answers(left):
                if not answer.died:
                    return answer
                self.stop(answer.about)
                if not self._running:
                    return answer
        return None

    def ask(self, worker: Any, method: str, about: Any, *arguments: Any) -> None:
        """Call a method of an actor."""
        self._open[getattr(worker, method).remote(*arguments)] = about

    def answers(self, seconds: float) -> list[Answer]:
        """Wait for an answer and a moment longer, and return all that came in."""
        if not self._open:
            time.sleep(seconds)
            return []
        ready, _ = ray.wait(list(self._open), num_returns=1, timeout=seconds)
        if ready and len(self._open) > 1:
            time.sleep(min(LONGEST_PAUSE, PAUSE * self._cost))
            begun = time.monotonic()
            ready, _ = ray.wait(list(self._open), num_returns=len(self._open), timeout=0)
            self._cost = time.monotonic() - begun
        return self._read(ready)

    def _read(self, ready: list[Any]) -> list[Answer]:
        """Fetch answers, all at once when none is an error."""
        try:
            values = ray.get(ready)
        except RayError:
            return [self._read_one(reference) for reference in ready]
        return [
            Answer(self._open.pop(ref), value) for ref, value in zip(ready, values, strict=True)
        ]

    def _read_one(self, reference: Any) -> Answer:
        about = self._open.pop(reference)
        try:
            return Answer(about, ray.get(reference))
        except RayTaskError as error:
            return Answer(about, error=error.cause or error)
        except RayError as death:
            return Answer(about, error=death, died=True)
