"""Ctrl-C and SIGTERM during a build: it stops cleanly and says what is kept.

Batch systems end jobs by SIGTERM. It is raised where the driver is, as Ctrl-C is, so that workers
are stopped and the state is written on the way out.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ray.exceptions import RayError

from sift_index.errors import BuildError, BuildInterrupted, SiftError
from sift_index.formats.manifest import current_version, read_manifest
from sift_index.formats.store import IndexPaths, file_names

# Ray turns whatever a signal raises while it waits into a plain KeyboardInterrupt.
_signalled: list[int] = []


@contextmanager
def signals_stop() -> Iterator[None]:
    """Let SIGTERM raise BuildInterrupted in the main thread; elsewhere nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _signalled.clear()
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> None:
    _signalled.append(number)
    raise BuildInterrupted("terminated", 128 + number)


@contextmanager
def stops_explained(paths: IndexPaths) -> Iterator[None]:
    """Turn the end of a build by a signal, or by Ray's, into one that says how to resume.

    Raises BuildInterrupted with the exit code of the signal, and BuildError.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        code = stop.code if isinstance(stop, BuildInterrupted) else _code()
        word = "interrupted" if code == BuildInterrupted.CTRL_C else "terminated"
        raise BuildInterrupted(f"{word}; {kept(paths)}", code) from None
    except RayError as problem:
        first = str(problem).strip().splitlines()[:1]
        raise BuildError(
            f"the connection to the Ray cluster was lost ({type(problem).__name__}: "
            f"{''.join(first)}); is its head node alive? {kept(paths)}"
        ) from problem


def _code() -> int:
    return 128 + _signalled[-1] if _signalled else BuildInterrupted.CTRL_C


def kept(paths: IndexPaths) -> str:
    """Say what of an unfinished build is kept, and how to go on."""
    try:
        version = current_version(paths)
        published = set(read_manifest(paths).units) if version else set()
        units = {name.removesuffix(".json") for name in file_names(paths.commits, ".json")}
    except (SiftError, OSError):
        return "committed units stay: run the same command to resume"
    if left := len(units - published):
        return (
            f"{left} committed units wait in {paths.root}, nothing of them is lost: run the same "
            "command to resume"
        )
    if published:
        return (
            f"no committed unit waits for a version, {paths.root} holds version {version}: run the "
            "same command to resume"
        )
    return "no unit was committed yet: run the same command to start again"
