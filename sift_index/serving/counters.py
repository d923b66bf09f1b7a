"""What a serving layer has done so far: safe to count in many threads, and without waiting.

How many keys masks let through is known on the device first. Such amounts wait in a queue until
their sums have been copied back, and are waited for only when somebody asks for a snapshot.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from threading import Lock
from typing import Protocol


@dataclass(frozen=True)
class ServingSnapshot:
    """Sums over everything a rank has served.

    requests: handles made. hits, misses: segments that became spans, and those that were looked up
    in vain. rows_sparse, rows_dense: rows of spans, and of glue, queries and decoding, each counted
    once for all layers. cells_visited, cells_causal: score cells of those rows in all layers and
    this rank's heads. bytes_uploaded: masks and tables brought to devices. bytes_gathered: keys and
    values copied out of KV pages.
    """

    requests: int = 0
    hits: int = 0
    misses: int = 0
    rows_sparse: int = 0
    rows_dense: int = 0
    cells_visited: int = 0
    cells_causal: int = 0
    bytes_uploaded: int = 0
    bytes_gathered: int = 0

    def __add__(self, other: "ServingSnapshot") -> "ServingSnapshot":
        names = (field.name for field in fields(self))
        return ServingSnapshot(**{n: getattr(self, n) + getattr(other, n) for n in names})

    @property
    def density(self) -> float:
        """Visited share of causal cells, 0.0 before the first row."""
        return self.cells_visited / self.cells_causal if self.cells_causal else 0.0


class Sums(Protocol):
    """What is copied back from a device, as `Visits` is."""

    def ready(self) -> bool:
        """Whether it has arrived."""


class ServingCounters:
    """Sums that any thread may add to and read."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._total = ServingSnapshot()
        self._waiting: deque[tuple[Sums, Callable[[], ServingSnapshot]]] = deque()

    def add(self, amount: ServingSnapshot) -> None:
        """Add an amount."""
        with self._lock:
            self._total += amount

    def add_later(self, sums: Sums, amount: Callable[[], ServingSnapshot]) -> None:
        """Add what `amount` returns once `sums` can be read without waiting."""
        with self._lock:
            self._waiting.append((sums, amount))
            self._settle(wait=False)

    def snapshot(self) -> ServingSnapshot:
        """Return the sums of everything begun so far; waits for the device where it must."""
        with self._lock:
            self._settle(wait=True)
            return self._total

    def _settle(self, wait: bool) -> None:
        while self._waiting and (wait or self._waiting[0][0].ready()):
            self._total += self._waiting.popleft()[1]()
