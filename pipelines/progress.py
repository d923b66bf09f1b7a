"""Progress of a build: a live bar on a terminal, one line every few seconds in a log.

Never a line per unit: a thousand workers finish hundreds a second. What a person looks for in a log
are the exceptions, and each of those is one event (see events).
"""

import sys
import time
from types import TracebackType
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from sift_index.pipelines.events import spell

LOG_SECONDS = 10.0


class BuildProgress(Protocol):
    """What the driver reports to; used as a context manager."""

    def __enter__(self) -> "BuildProgress":
        """Start reporting."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop reporting."""

    def note(self, message: str) -> None:
        """Report a phase, or a BuildEvent: a retry, a failure."""

    def start(self, units: int, tokens: int) -> None:
        """Say how much work there is."""

    def update(self, units: int, tokens: int, failures: int) -> None:
        """Say how much of it is done, in absolute numbers."""


def build_progress(stream: TextIO | None = None) -> BuildProgress:
    """Return a live bar when `stream` (standard error by default) is a terminal, else a log."""
    target = sys.stderr if stream is None else stream
    return TerminalProgress(target) if target.isatty() else LogProgress(target)


class LogProgress:
    """Plain lines that a person can grep."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._units = self._tokens = 0
        self._begun = self._last = time.monotonic()

    def __enter__(self) -> "LogProgress":
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def note(self, message: str) -> None:
        """Write one line."""
        print(f"sift-index build: {message}", file=self._stream, flush=True)

    def start(self, units: int, tokens: int) -> None:
        """Write the size of the work and start the clock."""
        self._units, self._tokens = units, tokens
        self._begun = self._last = time.monotonic()
        self.note(f"{units} units, {tokens} tokens to index")

    def update(self, units: int, tokens: int, failures: int) -> None:
        """Write a line when enough time has passed, and at the end."""
        now = time.monotonic()
        if now - self._last < LOG_SECONDS and units < self._units:
            return
        self._last = now
        rate = tokens / max(now - self._begun, 1e-9)
        left = (self._tokens - tokens) / rate if rate else float("inf")
        line = spell(
            "progress",
            units=f"{units}/{self._units}",
            tokens=f"{tokens}/{self._tokens}",
            tokens_per_second=f"{rate:.0f}",
            failures=failures,
            eta_seconds=f"{left:.0f}",
        )
        self.note(line)


class TerminalProgress:
    """A rich progress bar with tokens per second, units, failures and the time left."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream)
        self._begun = time.monotonic()
        self._bar = Progress(
            TextColumn("indexing"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("tokens  {task.fields[detail]}"),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task("build", total=None, detail="")
        self._units = 0

    def __enter__(self) -> "TerminalProgress":
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def note(self, message: str) -> None:
        """Print one line above the bar."""
        self._console.print(message, style="dim", markup=False, highlight=False)

    def start(self, units: int, tokens: int) -> None:
        """Show the bar."""
        self._units = units
        self._begun = time.monotonic()
        self._bar.update(self._task, total=tokens)
        self._bar.start()

    def update(self, units: int, tokens: int, failures: int) -> None:
        """Move the bar."""
        rate = tokens / max(time.monotonic() - self._begun, 1e-9)
        detail = f"{rate:,.0f} tokens/s so far  unit {units}/{self._units}  failures {failures}"
        self._bar.update(self._task, completed=tokens, detail=detail)
