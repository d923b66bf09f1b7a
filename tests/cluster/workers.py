"""The worker that these builds run: the real one, slowed down, watched and made to fail.

Drivers put it in the place of `BuildWorker`. It computes on the CPU though the build asks for
GPUs, so that Ray places workers as on machines that have them.
"""

import errno
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from sift_index.formats import local
from sift_index.formats.identity import document_key
from sift_index.pipelines import worker
from sift_index.pipelines.config import BuildConfig
from sift_index.pipelines.corpus import CorpusReader
from sift_index.pipelines.documents import DocumentRules

GATHER_SECONDS = 60.0


@dataclass(frozen=True)
class Behaviour:
    """How workers behave.

    Every computation of a unit takes at least `pace` seconds, and `slow_pace` on `slow_node`; none
    ends before `gather` nodes have begun one. Between pack and receipt there are `commit_pause`
    seconds; on `full_node` no file can be written. `ledger` gets a line for every computation as
    it starts.
    """

    ledger: Path
    gather: int = 0
    pace: float = 0.0
    commit_pause: float = 0.0
    slow_node: str = ""
    slow_pace: float = 0.0
    full_node: str = ""


@dataclass(frozen=True)
class Computed:
    """One computation of documents: when it started, where, and their keys."""

    time: float
    pid: int
    node: str
    keys: tuple[str, ...]


def computations(ledger: Path) -> list[Computed]:
    """Return what workers computed, in the order it started."""
    if not ledger.exists():
        return []
    lines = map(json.loads, ledger.read_text().splitlines())
    return [Computed(**{**line, "keys": tuple(line["keys"])}) for line in lines]


class PacedWorker(worker.BuildWorker):
    """A build worker that behaves as told."""

    behaviour: Behaviour

    def __init__(self, config: BuildConfig, reader: CorpusReader, rules: DocumentRules) -> None:
        super().__init__(replace(config, device="cpu"), reader, rules)
        # The process is this actor's alone, and what is replaced stays so until it ends.
        self._node = ray.get_runtime_context().get_node_id()
        module: Any = worker
        self._launch_batches, self._commit_receipt = module.launch_batches, module.commit
        module.launch_batches, module.commit = self._launched, self._committed
        if self.behaviour.full_node == self._node:
            local._write_temp = _full_disk

    def _launched(self, extractor: Any, documents: Sequence[Any], *rest: Any) -> Iterator[Any]:
        keys = [document_key(list(ids)).hex() for ids in documents]
        line = {"time": time.time(), "pid": os.getpid(), "node": self._node, "keys": keys}
        with self.behaviour.ledger.open("a") as file:
            file.write(f"{json.dumps(line)}\n")
        self._wait_for_others()
        slow = self.behaviour.slow_node == self._node
        time.sleep(self.behaviour.slow_pace if slow else self.behaviour.pace)
        return iter(self._launch_batches(extractor, documents, *rest))

    def _wait_for_others(self) -> None:
        deadline = time.monotonic() + GATHER_SECONDS
        while time.monotonic() < deadline:
            nodes = {one.node for one in computations(self.behaviour.ledger)}
            if len(nodes) >= self.behaviour.gather:
                return
            time.sleep(0.05)

    def _committed(self, *arguments: Any) -> Any:
        time.sleep(self.behaviour.commit_pause)
        return self._commit_receipt(*arguments)


def injected(behaviour: Behaviour) -> type[PacedWorker]:
    """Return a class for `ray.remote`; it travels with its behaviour, for no module has it."""
    return type("Injected", (PacedWorker,), {"behaviour": behaviour})


def _full_disk(folder: Path, data: bytes) -> Path:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
