"""Numbers of a build for Prometheus, through Ray's metrics API.

Ray exports them on every node whose agent runs (`pip install 'ray[default]'`). Where it does not,
recording costs microseconds and goes nowhere; outside of Ray nothing is recorded. A metric can
never make a build fail.
"""

import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Protocol

logger = logging.getLogger(__name__)

PREFIX = "sift_index_build_"
SECONDS = [0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0]
# Name without prefix: (kind, description, labels). Ray adds labels of node, worker and job.
WORKER = {
    "units": ("Counter", "Units committed.", ("device",)),
    "tokens": ("Counter", "Tokens of committed units.", ("device",)),
    "failed_documents": ("Counter", "Documents that workers left out.", ("device",)),
    "unit_seconds": ("Histogram", "Seconds of a unit.", ("device",)),
}
DRIVER = {
    "units_left": ("Gauge", "Units still to do.", ()),
    "tokens_left": ("Gauge", "Tokens still to do.", ()),
    "events": ("Counter", "Retries, splits, worker deaths and others.", ("event",)),
}


class DriverMetrics(Protocol):
    """What the driver records."""

    def left(self, units: int, tokens: int) -> None:
        """Record how much work is left."""

    def event(self, kind: str) -> None:
        """Count one event."""


class WorkerMetrics(Protocol):
    """What a worker records."""

    def unit(self, tokens: int, seconds: float, failed: int, device: str) -> None:
        """Record a unit that this worker is done with; `tokens` 0 when none of it was indexed."""


class Silence:
    """Records nothing."""

    def left(self, units: int, tokens: int) -> None:
        """Do nothing."""

    def event(self, kind: str) -> None:
        """Do nothing."""

    def unit(self, tokens: int, seconds: float, failed: int, device: str) -> None:
        """Do nothing."""


class RayMetrics:
    """Records through metrics of Ray."""

    def __init__(self, metrics: Mapping[str, Any]) -> None:
        self._metrics = metrics

    def left(self, units: int, tokens: int) -> None:
        """Set the gauges."""
        _quietly(lambda: self._metrics["units_left"].set(units))
        _quietly(lambda: self._metrics["tokens_left"].set(tokens))

    def event(self, kind: str) -> None:
        """Count it under its kind."""
        _quietly(lambda: self._metrics["events"].inc(1, tags={"event": kind}))

    def unit(self, tokens: int, seconds: float, failed: int, device: str) -> None:
        """Count the unit, its tokens and failures, and its seconds."""
        tags = {"device": device}
        if tokens:
            _quietly(lambda: self._metrics["units"].inc(1, tags=tags))
            _quietly(lambda: self._metrics["tokens"].inc(tokens, tags=tags))
            _quietly(lambda: self._metrics["unit_seconds"].observe(seconds, tags=tags))
        if failed:
            _quietly(lambda: self._metrics["failed_documents"].inc(failed, tags=tags))


def driver_metrics() -> DriverMetrics:
    """Return the driver's metrics; silence outside of Ray."""
    return _created("driver") if _connected() else Silence()


def worker_metrics() -> WorkerMetrics:
    """Return a worker's metrics, the same in the whole process; silence outside of Ray."""
    return _created("worker") if _connected() else Silence()


def _connected() -> bool:
    try:
        import ray

        return bool(ray.is_initialized())
    except ImportError:
        return False


@lru_cache(maxsize=2)  # a name registered twice is a warning of Ray's
def _created(role: str) -> RayMetrics | Silence:
    try:
        from ray.util import metrics

        table = DRIVER if role == "driver" else WORKER
        return RayMetrics({name: _metric(metrics, name, *row) for name, row in table.items()})
    except Exception:  # a developer API: it may go or change
        logger.debug("no metrics", exc_info=True)
        return Silence()


def _metric(module: Any, name: str, kind: str, text: str, labels: tuple[str, ...]) -> Any:
    more = {"boundaries": SECONDS} if kind == "Histogram" else {}
    return getattr(module, kind)(PREFIX + name, description=text, tag_keys=labels, **more)


def _quietly(record: Callable[[], None]) -> None:
    try:
        record()
    except Exception:  # a unit that was computed is worth more than its number
        logger.debug("a metric was not recorded", exc_info=True)
