"""Options of benchmarks that hold several values with commas between them."""

from collections.abc import Callable
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
