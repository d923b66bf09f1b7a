"""Progress: lines that a person and a script can read, a bar on a terminal."""

import io
import os
import pty
import re
import threading

from sift_index.pipelines import progress as module
from sift_index.pipelines.progress import LogProgress, TerminalProgress, build_progress

LINE = re.compile(
    r"sift-index build: event=progress units=(\d+)/(\d+) tokens=(\d+)/(\d+) "
    r"tokens_per_second=(\d+) failures=(\d+) eta_seconds=(\d+|inf)"
)


def report(progress: LogProgress | TerminalProgress) -> None:
    with progress:
        progress.note("scanning [bold]this[/bold]")
        progress.start(3, 300)
        for done in (1, 2, 3):
            progress.update(done, 100 * done, done // 2)


def log_lines(monkeypatch, seconds: float) -> list[str]:
    monkeypatch.setattr(module, "LOG_SECONDS", seconds)
    stream = io.StringIO()
    report(LogProgress(stream))
    return stream.getvalue().splitlines()


def test_every_log_line_parses(monkeypatch) -> None:
    lines = log_lines(monkeypatch, 0.0)
    assert lines[:2] == [
        "sift-index build: scanning [bold]this[/bold]",
        "sift-index build: 3 units, 300 tokens to index",
    ]
    found = [LINE.fullmatch(line) for line in lines[2:]]
    assert all(found) and len(found) == 3
    numbers = [match.groups() for match in found if match]
    assert [n[:4] for n in numbers] == [(str(i), "3", f"{i}00", "300") for i in (1, 2, 3)]
    assert [n[5] for n in numbers] == ["0", "1", "1"] and numbers[-1][6] == "0"
    assert all(int(n[4]) > 0 for n in numbers)


def test_a_log_is_quiet_between_and_always_says_the_end(monkeypatch) -> None:
    lines = [line for line in log_lines(monkeypatch, 60.0) if LINE.fullmatch(line)]
    assert len(lines) == 1 and "units=3/3" in lines[0]


def test_without_any_speed_the_time_left_is_unknown(monkeypatch) -> None:
    monkeypatch.setattr(module, "LOG_SECONDS", 0.0)
    stream = io.StringIO()
    progress = LogProgress(stream)
    progress.start(2, 10)
    progress.update(0, 0, 0)
    assert "eta_seconds=inf" in stream.getvalue()


def test_a_file_gets_a_log_and_a_terminal_a_bar() -> None:
    assert isinstance(build_progress(io.StringIO()), LogProgress)
    assert "tokens/s so far" in _on_a_terminal(lambda stream: report(_bar(stream)))


def test_the_bar_shows_units_failures_and_notes_as_they_are() -> None:
    shown = _on_a_terminal(lambda stream: report(_bar(stream)))
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert "unit 3/3" in plain and "failures 1" in plain and "300/300" in plain
    assert "scanning [bold]this[/bold]" in plain


def test_a_bar_that_never_started_stops() -> None:
    def refused(stream: io.TextIOBase) -> None:
        with _bar(stream) as bar:
            bar.note("refused")

    assert "refused" in _on_a_terminal(refused)


def _bar(stream) -> TerminalProgress:
    progress = build_progress(stream)
    assert isinstance(progress, TerminalProgress)
    return progress


def _on_a_terminal(work) -> str:
    """Run `work` with a stream on a pseudo-terminal of 120 columns; return what was shown."""
    ours, theirs = pty.openpty()
    shown: list[bytes] = []
    reader = threading.Thread(target=_drain, args=(ours, shown))
    reader.start()
    with os.fdopen(theirs, "w") as stream:
        os.environ["COLUMNS"], before = "120", os.environ.get("COLUMNS")
        try:
            work(stream)
        finally:
            os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    reader.join(10)
    os.close(ours)
    return b"".join(shown).decode()


def _drain(handle: int, shown: list[bytes]) -> None:
    try:
        while data := os.read(handle, 4096):
            shown.append(data)
    except OSError:  # Linux reports a closed pseudo-terminal as an input/output error
        return
