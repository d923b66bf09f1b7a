"""Killing a writer between any two file operations, in this process.

From operation `at` on nothing reaches the file system any more: clean-up code of the killed writer
fails like everything else, as it would when the process is gone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

OPERATIONS = ("open", "link", "unlink", "rename", "replace", "fsync", "mkdir", "utime", "rmdir")


class Killed(BaseException):
    """Not an Exception: no handler of the code under test may catch it."""


class Switch:
    """Counts file operations that write, and stops all of them from number `at` on.

    `between` is called before each of them.
    """

    def __init__(self, at: int | None, between: Callable[[], None]) -> None:
        self.at, self.between, self.count = at, between, 0

    def wrap(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if self.at is not None and self.count >= self.at:
                raise Killed
            self.count += 1
            self.between()
            return operation(*args, **kwargs)

        return run


@contextmanager
def killed_after(at: int | None, between: Callable[[], None] = lambda: None) -> Iterator[Switch]:
    """Let `at` file operations happen (None: all) and end the block at the next one."""
    switch = Switch(at, between)
    with pytest.MonkeyPatch.context() as patch:
        for name in OPERATIONS:
            patch.setattr(os, name, switch.wrap(getattr(os, name)))
        try:
            yield switch
        except Killed:
            pass


def every_kill(
    start: Path, work: Path, command: Callable[[Path], object]
) -> Iterator[tuple[int, Path]]:
    """Yield a copy of the index `start` for each place where `command` can be killed."""
    shutil.copytree(start, work / "whole")
    with killed_after(None) as switch:
        command(work / "whole")
    assert switch.count > 3
    for at in range(switch.count):
        copy = work / f"killed-{at}"
        shutil.copytree(start, copy)
        with killed_after(at):
            command(copy)
            raise AssertionError(f"operation {at} of {switch.count} did not happen")
        yield at, copy
