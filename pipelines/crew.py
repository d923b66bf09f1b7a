"""The workers of one build: started when there is work, asked what they would build."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from sift_index.errors import BuildError
from sift_index.formats.fingerprint import Fingerprint, require_same_build
from sift_index.pipelines.cluster import worker_count, worker_resources
from sift_index.pipelines.config import BuildConfig
from sift_index.pipelines.corpus import CorpusReader
from sift_index.pipelines.documents import DocumentRules, Piece
from sift_index.pipelines.measurement import Sample, mean_sample
from sift_index.pipelines.planner import Unit
from sift_index.pipelines.progress import BuildProgress
from sift_index.pipelines.runner import UNITS_IN_FLIGHT, RunResult, UnitRunner
from sift_index.pipelines.worker import BuildWorker


class Crew:
    """Ray actors that all hold the same model; one from the start, the others when needed.

    A context manager that stops them at the end: after an error the traceback would keep them,
    and the memory and GPUs they hold.
    """

    def __init__(self, config: BuildConfig, reader: CorpusReader, rules: DocumentRules) -> None:
        self._config = config
        self._reader = reader
        self._rules = rules
        resources = worker_resources(config, config.device)
        self._remote = ray.remote(BuildWorker).options(max_concurrency=UNITS_IN_FLIGHT, **resources)
        self._workers: list[Any] = []

    def __enter__(self) -> "Crew":
        self._workers.append(self._start())
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self._workers:
            ray.kill(worker)

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """What the workers would build; loads the model."""
        return self._ask(self._workers)[0]

    @property
    def size(self) -> int:
        """Number of workers started."""
        return len(self._workers)

    def run(self, units: list[Unit], progress: BuildProgress) -> RunResult:
        """Run units on as many workers as there is work for."""
        if not units:
            return RunResult()
        self.hire(worker_count(self._config, self._config.device, len(units)))
        runner = UnitRunner(
            start_worker=self._start,
            workers=self._workers,
            source=self._reader.source,
            build_digest=self.fingerprint.build_digest,
            progress=progress,
        )
        return runner.run(units)

    def hire(self, count: int) -> None:
        """Have this many workers that would build the same."""
        self._workers += [self._start() for _ in range(count - len(self._workers))]
        for found in self._ask(self._workers):
            require_same_build(self.fingerprint, found)

    def measure(self, samples: Sequence[Sequence[Piece]]) -> list[Sample]:
        """Let all workers measure the same samples at once; return each sample's mean."""
        found = self._answers([worker.measure.remote(samples) for worker in self._workers])
        return [mean_sample(of_one) for of_one in zip(*found, strict=True)]

    def _start(self) -> Any:
        return self._remote.remote(self._config, self._reader, self._rules)

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
            raise BuildError(
                f"a worker died while loading or measuring model {self._config.model}: {death}; "
                "is there enough memory for the model in every worker? Try --workers 1"
            ) from death
        return found
