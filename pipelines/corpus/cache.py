"""A cache of one value.

Documents are mostly read in the order in which they lie, so the last opened file and the last row
group are all that is worth keeping, and memory stays bounded by one of each.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Latest(Generic[K, V]):
    """Keeps the value made last, and travels empty when it is pickled."""

    def __init__(self) -> None:
        self._held: tuple[K, V] | None = None

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of `key`, made anew unless it is the one held."""
        held = self._held
        if held is None or held[0] != key:
            held = self._held = None  # free the old value before the new one takes its memory
            held = self._held = (key, make())
        return held[1]

    def __reduce__(self) -> tuple[type["Latest[K, V]"], tuple[()]]:
        return type(self), ()
