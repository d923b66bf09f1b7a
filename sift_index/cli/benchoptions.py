"""What options of several benchmarks have in common: lists, and going on with a results file."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sift_index.errors import UsageError

Value = TypeVar("Value")


def names(text: str) -> list[str]:
    """Return the names in a list."""
    return [name for part in text.split(",") if (name := part.strip())]


def numbers(option: str, text: str, kind: Callable[[str], Value]) -> tuple[Value, ...]:
    """Return the numbers in a list. Raises UsageError where `kind` raises ValueError."""
    try:
        return tuple(kind(name) for name in names(text))
    except ValueError as problem:
        raise UsageError(
            f"{option}: expected numbers with commas between them, found {text!r}; see --help"
        ) from problem


def check_resume(resume: bool, results: Path | None) -> None:
    """Raise UsageError where a run should go on and nobody says with which file."""
    if resume and results is None:
        raise UsageError(
            "expected --results with --resume, found none; name the file to go on with"
        )
