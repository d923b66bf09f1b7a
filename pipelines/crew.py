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
from sift_index.pipelines.documents import DocumentRules
from sift_index.pipelines.planner import Unit
from sift_index.pipelines.progress import BuildProgress
from sift_index.pipelines.runner import RunResult, UnitRunner
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
        self._remote = ray.remote(BuildWorker).options(**worker_resources(config, config.device))
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
        count = worker_count(self._config, self._config.device, len(units))
        self._workers += [self._start() for _ in range(count - len(self._workers))]
        for found in self._ask(self._workers):
            require_same_build(self.fingerprint, found)
        runner = UnitRunner(
            start_worker=self._start,
            workers=self._workers,
            source=self._reader.source,
            build_digest=self.fingerprint.build_digest,
            progress=progress,
        )
        return runner.run(units)

    def _start(self) -> Any:
        return self._remote.remote(self._config, self._reader, self._rules)

    def _ask(self, workers: Sequence[Any]) -> list[Fingerprint]:
        """Return the workers' fingerprints; their errors come out as what they are."""
        try:
            found: list[Fingerprint] = ray.get([worker.fingerprint.remote() for worker in workers])
        except RayTaskError as error:
            raise error.cause from None
        except RayError as death:
            raise BuildError(
                f"a worker died while loading model {self._config.model}: {death}; is there "
                "enough memory for the model in every worker? Try --workers 1"
            ) from death
        return found
