"""Builds through the command line, each in a process of its own that can be killed.

Processes are forked from one that has imported everything: a build starts in a second.
"""

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from sift_index.formats.receipts import Receipt, read_receipts
from sift_index.formats.store import IndexPaths
from sift_index.pipelines.worker import BuildWorker
from tests.cluster.workers import Behaviour, injected

ROOT = Path(__file__).parents[2]
POLICY = "rule: probe\nprobe_rows: 64\nprobe_tokens: 64\n"
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.cluster.driving", "sift_index.pipelines.build"])


@dataclass
class Driver:
    """A running or ended `sift-index build`."""

    log: Path
    answer: Path
    process: Any

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return bool(self.process.is_alive())

    @property
    def said(self) -> str:
        """What it has written to its log."""
        return self.log.read_text() if self.log.exists() else ""

    @property
    def summary(self) -> dict[str, Any]:
        """What it printed as JSON, empty if it was killed before."""
        text = self.answer.read_text() if self.answer.exists() else ""
        found: dict[str, Any] = json.loads(text) if text else {}
        return found

    def wait(self, seconds: float = 120) -> int:
        """Return the exit code; a build that takes longer is killed and fails the test."""
        self.process.join(seconds)
        if self.process.is_alive():
            self.kill()
            raise AssertionError(f"a build took more than {seconds} s:\n{self.said}")
        return int(self.process.exitcode)

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.join()


@dataclass
class Site:
    """Where a build happens: its corpus, model and output, and how workers behave there."""

    folder: Path
    corpus: Path
    model: Path
    address: str
    behaviour: Behaviour
    options: tuple[str, ...] = ()
    index: Path = field(default=Path())
    drivers: list[Driver] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.index == Path():
            self.index = self.folder / "index"
        (self.folder / "policy.yaml").write_text(POLICY)

    @property
    def paths(self) -> IndexPaths:
        """The index."""
        return IndexPaths(self.index)

    def start(self, behaviour: Behaviour | None = None) -> Driver:
        """Start `sift-index build`."""
        number = len(self.drivers)
        log, answer = self.folder / f"{number}.log", self.folder / f"{number}.json"
        arguments = (self.arguments(), behaviour or self.behaviour, log, answer)
        process = _FORKS.Process(target=_drive, args=arguments, daemon=True)
        process.start()
        self.drivers.append(Driver(log, answer, process))
        return self.drivers[-1]

    def arguments(self) -> list[str]:
        """Return the command line, without the program."""
        chosen = {
            "--index": self.index,
            "--model": self.model,
            "--policy": self.folder / "policy.yaml",
            "--address": self.address,
            "--device": "cuda",
            "--threads": 1,
            "--output": "json",
        }
        named = [str(part) for option in chosen.items() for part in option]
        return ["build", str(self.corpus), *named, *self.options]

    def finish(self) -> dict[str, Any]:
        """Build with nothing in the way; return the summary."""
        driver = self.start()
        assert driver.wait() == 0, driver.said
        return driver.summary

    def receipts(self) -> list[Receipt]:
        """Return what is committed."""
        return read_receipts(self.paths)

    def committed(self) -> int:
        """Return how many units are committed, without reading them."""
        return self.files("commits", whole=True)

    def files(self, folder: str, whole: bool = False) -> int:
        """Return how many files a folder of the index has; `whole` leaves temporary ones out."""
        with suppress(FileNotFoundError):
            names = os.listdir(self.index / folder)
            return sum(not (whole and name.startswith(".")) for name in names)
        return 0


def wait_until(condition: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    """Return what a condition says once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.002)
    return found


def replace_worker(other: type[BuildWorker]) -> None:
    """Let builds of this process start workers of another class."""
    for name, module in list(sys.modules.items()):
        if name.startswith("sift_index.pipelines.") and module.__dict__.get("BuildWorker"):
            module.__dict__["BuildWorker"] = other


def in_process(target: Callable[..., None], *arguments: Any) -> Any:
    """Start a function of a module in a process like those of drivers."""
    process = _FORKS.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def _drive(arguments: list[str], behaviour: Behaviour, log: Path, answer: Path) -> None:
    os.chdir(ROOT)  # Ray lets workers import from the driver's folder
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream, path in ((1, answer), (2, log)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), stream)
    from sift_index.cli.main import main

    import_module("sift_index.pipelines.build")
    replace_worker(injected(behaviour))
    sys.argv = ["sift-index", *arguments]
    main()
