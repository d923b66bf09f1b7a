"""The heartbeat of a build: what `sift-index status` reads while it runs, and after it died.

A thread writes, not the loop that waits for units: a build whose units take minutes is not dead.
It can never make a build fail: what cannot be written is said once.
"""

import os
import secrets
import shlex
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from sift_index import __version__
from sift_index.errors import SiftError
from sift_index.formats.buildstate import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    RUNNING,
    BuildState,
    forget_states,
    read_states,
    state_path,
    write_state,
)
from sift_index.formats.manifest import utc_now
from sift_index.formats.store import IndexPaths, remove_all
from sift_index.pipelines.config import BuildConfig
from sift_index.pipelines.corpus.files import printable
from sift_index.pipelines.events import BuildEvent
from sift_index.pipelines.metrics import DriverMetrics, driver_metrics
from sift_index.pipelines.progress import BuildProgress

BEAT_SECONDS = 10.0
# Beats over which the speed is taken: five minutes, so that lost nodes show in the time left.
RATE_BEATS = 30
MESSAGE_CHARACTERS = 2000

__all__ = ["BEAT_SECONDS", "BuildState", "StateWriter", "about"]


def about(config: BuildConfig) -> BuildState:
    """Return what is known of a build before it starts: who, where and what."""
    now = utc_now()
    return BuildState(
        build=secrets.token_hex(8),
        host=socket.gethostname(),
        pid=os.getpid(),
        command=printable(shlex.join([os.path.basename(sys.argv[0]), *sys.argv[1:]])),
        corpus=printable(str(config.corpus)),
        model=printable(config.model),
        policy=config.policy.rule,
        software=f"sift-index {__version__}",
        started=now,
        updated=now,
        message="reading the corpus",
    )


class StateWriter:
    """A BuildProgress that passes everything on, and writes it down every few seconds.

    A context manager around a build. A build that is refused leaves no trace: nothing is written in
    the first seconds, and what was is removed unless `accept` was called.
    """

    def __init__(
        self, paths: IndexPaths, state: BuildState, progress: BuildProgress, beat: float = 0.0
    ) -> None:
        self._paths, self._state, self._progress = paths, state, progress
        self._beat = beat or BEAT_SECONDS
        self._new_folder = isinstance(paths.root, Path) and not paths.root.exists()
        self._metrics: DriverMetrics = driver_metrics()
        self._events: Counter[str] = Counter()
        self._samples: deque[tuple[float, int]] = deque(maxlen=RATE_BEATS + 1)
        self._lock = threading.Lock()  # of writing; fields are changed by the driver's thread alone
        self._over = threading.Event()
        self._accepted = self._written = self._complained = False
        self._unreadable = 0
        self._thread = threading.Thread(target=self._run, name="build-state", daemon=True)

    def __enter__(self) -> "StateWriter":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        if kind is not None and not self._accepted:
            return self._withdraw()
        state, reason = _ending(kind, value)
        self._state = replace(self._state, state=state, reason=reason)
        self._write()

    def accept(self, failures: int = 0) -> None:
        """Say that the output takes this build: be seen from now on, in place of earlier runs.

        `failures` are the documents that are known to fail before any work.
        """
        self._accepted, self._unreadable = True, failures
        self._state = replace(self._state, failures=failures)
        self._write()
        self._guarded(lambda: forget_states(self._paths, self._state.build))

    def alone(self) -> bool:
        """Say whether no other build of this index lives; one that cannot be read may."""
        try:
            found = read_states(self._paths)
        except SiftError:
            return False
        own = self._state.build
        return all(state.build == own or state.verdict() != RUNNING for state in found)

    def note(self, message: str) -> None:
        """Report one event or phase."""
        if isinstance(message, BuildEvent):
            self._events[message.kind] += 1
            self._metrics.event(message.kind)
        self._state = replace(
            self._state,
            message=printable(str(message)[:MESSAGE_CHARACTERS]),
            retries=self._events["retry"],
            worker_deaths=self._events["worker_lost"],
        )
        self._progress.note(message)

    def start(self, units: int, tokens: int) -> None:
        """Say how much work there is."""
        self._state = replace(self._state, units=units, tokens=tokens, units_done=0, tokens_done=0)
        self._samples = deque([(time.monotonic(), 0)], maxlen=RATE_BEATS + 1)
        self._metrics.left(units, tokens)
        self._progress.start(units, tokens)

    def update(self, units: int, tokens: int, failures: int) -> None:
        """Say how much of it is done, in absolute numbers."""
        failures += self._unreadable
        self._state = replace(self._state, units_done=units, tokens_done=tokens, failures=failures)
        self._metrics.left(self._state.units - units, self._state.tokens - tokens)
        self._progress.update(units, tokens, failures)

    def _run(self) -> None:
        while not self._over.wait(self._beat):
            self._write()

    def _write(self) -> None:
        with self._lock:
            state = replace(self._state, updated=utc_now(), tokens_per_second=self._rate())
            self._guarded(lambda: write_state(self._paths, state))
            self._written = True

    def _rate(self) -> int:
        """Return tokens per second over the last beats, or since the start when that is less."""
        samples = self._samples  # `start` may put another one there
        if not samples:
            return 0
        now, done = time.monotonic(), self._state.tokens_done
        samples.append((now, done))
        since, before = samples[0]
        return round(max(0, done - before) / max(now - since, 1e-9))  # less: `start` came between

    def _withdraw(self) -> None:
        """Remove what was written before the output took this build, and the folders it made."""
        if not self._written:
            return
        self._guarded(lambda: remove_all([state_path(self._paths, self._state.build)]))
        if isinstance(self._paths.root, Path):
            for folder in (self._paths.state, *[self._paths.root] * self._new_folder):
                with suppress(OSError):  # another build is there
                    folder.rmdir()

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as problem:  # whatever it is, the build is worth more
            if not self._complained:
                self._complained = True
                with suppress(Exception):  # a log that nobody reads any more
                    self._progress.note(
                        f"`sift-index status` may not show this build, which goes on: {problem}"
                    )


def _ending(kind: type[BaseException] | None, value: BaseException | None) -> tuple[str, str]:
    if kind is None:
        return FINISHED, ""
    if issubclass(kind, KeyboardInterrupt):
        return INTERRUPTED, printable(str(value)) or "interrupted"
    reason = f"{kind.__name__}: {value}" if str(value) else kind.__name__
    return FAILED, printable(reason[:MESSAGE_CHARACTERS])
