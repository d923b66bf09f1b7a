"""The workers of one build: started when there is work, asked what they would build."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from sift_index.errors import BuildError
from sift_index.formats.fingerprint import Fingerprint
from sift_index.pipelines.actors import RayWorkers
from sift_index.pipelines.agreement import require_same_worker, require_tokenizer_digest
from sift_index.pipelines.cluster import worker_count, worker_resources
from sift_index.pipelines.config import BuildConfig
from sift_index.pipelines.corpus import CorpusReader
from sift_index.pipelines.documents import DocumentRules, Piece
from sift_index.pipelines.failures import FailureBudget
from sift_index.pipelines.limits import LIMITS
from sift_index.pipelines.measurement import Sample, mean_sample
from sift_index.pipelines.progress import BuildProgress
from sift_index.pipelines.runner import UNITS_IN_FLIGHT, Plan, RunResult, UnitRunner
from sift_index.pipelines.slots import first_line
from sift_index.pipelines.worker import BuildWorker

# Times that workers are started until one can say what it would build.
FIRST_TRIES = 3
DIED = (
    "a worker died while loading or measuring model {}: {}; is there enough memory for the model "
    "in every worker? Try --workers 1"
)


class Crew:
    """Ray actors that all hold the same model; one from the start, the others when needed.

    A context manager that stops them at the end: after an error the traceback would keep them,
    and the memory and GPUs they hold.
    """

    def __init__(self, config: BuildConfig, reader: CorpusReader, rules: DocumentRules) -> None:
        self._config = config
        self._reader = reader
        self._rules = rules
        self._most = 0
        self._workers = RayWorkers(self._start)

    def __enter__(self) -> "Crew":
        self._workers.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._workers.stop_all()

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """What the workers would build; loads the model. BuildError for another tokenizer."""
        found = self._first_fingerprint()
        self._require_tokenizer(found)
        return found

    @property
    def size(self) -> int:
        """The most workers there were at once."""
        return max(self._most, len(self._workers.running))

    def run(self, units: Plan, progress: BuildProgress, failures: FailureBudget) -> RunResult:
        """Run units on as many workers as there is work and room for."""
        if not len(units):
            return RunResult()
        runner = UnitRunner(
            workers=self._workers,
            wanted=self._wanted,
            admit=self._admit,
            source=self._reader.source,
            build_digest=self.fingerprint.build_digest,
            progress=progress,
            joined=self._workers.running,
            limits=replace(LIMITS, unit_seconds=self._config.unit_timeout),
            failures=failures,
        )
        return runner.run(units)

    def hire(self, count: int) -> None:
        """Have this many workers that would build the same, all of them loaded."""
        for _ in range(count - len(self._workers.running)):
            self._workers.start()
        for found in self._ask(self._workers.running):
            self._admit(found)

    def measure(self, samples: Sequence[Sequence[Piece]]) -> list[Sample]:
        """Let all workers measure the same samples at once; return each sample's mean."""
        workers = self._workers.running
        found = self._answers([worker.measure.remote(samples) for worker in workers])
        return [mean_sample(of_one) for of_one in zip(*found, strict=True)]

    def _first_fingerprint(self) -> Fingerprint:
        """Return what the first worker that has its model would build.

        When it dies or hangs, the node may be at fault: more are started at once, to meet others.
        """
        for tries in range(1, FIRST_TRIES + 1):
            wanted = worker_count(self._config, self._config.device, tries)
            for _ in range(wanted - len(self._workers.running)):
                self._workers.start()
            placed = self._workers.first("place", LIMITS.nothing_alive)
            if placed is None:
                raise BuildError(
                    f"no worker found a place in the cluster within {LIMITS.nothing_alive:.0f} s: "
                    "is it busy with other work (`ray status`)? Run the same command later"
                )
            answer = placed if placed.died else self._workers.first("fingerprint", LIMITS.loading)
            if answer is None:
                self._workers.stop_all()
            elif answer.error is None:
                found: Fingerprint = answer.value
                return found
            elif not answer.died:
                raise answer.error
        slow = f"it did not load within {LIMITS.loading:.0f} s"
        why = slow if answer is None else first_line(answer.error)
        raise BuildError(DIED.format(self._config.model, why))

    def _wanted(self, units: int) -> int:
        wanted = worker_count(self._config, self._config.device, units)
        self._most = max(self._most, wanted)
        return wanted

    def _admit(self, found: Fingerprint) -> None:
        """Raise BuildError for a worker that would build something else."""
        self._require_tokenizer(found)
        require_same_worker(self.fingerprint, found)

    def _require_tokenizer(self, found: Fingerprint) -> None:
        expected, tokenizer = self._rules.tokenizer, found.build["tokenizer"]
        require_tokenizer_digest(self._config.model, expected, tokenizer, "a worker")

    def _start(self) -> Any:
        return self._remote.remote(*self._given)

    @cached_property
    def _remote(self) -> Any:
        """The class of the actors, with what one of them needs."""
        resources = worker_resources(self._config, self._config.device)
        return ray.remote(BuildWorker).options(max_concurrency=UNITS_IN_FLIGHT, **resources)

    @cached_property
    def _given(self) -> list[Any]:
        """What every worker is told, sent to the cluster once: a reader may hold a long list."""
        return [ray.put(each) for each in (self._config, self._reader, self._rules)]

    def _ask(self, workers: Sequence[Any]) -> list[Fingerprint]:
        """Return the workers' fingerprints; the first call loads the model."""
        return self._answers([worker.fingerprint.remote() for worker in workers])

    def _answers(self, references: Sequence[Any]) -> list[Any]:
        """Return what workers answer; their errors come out as what they are."""
        try:
            found: list[Any] = ray.get(list(references))
        except RayTaskError as error:
            raise error.cause from None
        except RayError as death:
            why = first_line(death)
            raise BuildError(DIED.format(self._config.model, why)) from death
        return found
