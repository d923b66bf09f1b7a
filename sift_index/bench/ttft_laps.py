"""Where the time of a prefill goes: laps around its parts, on the device's own clock.

Laps are marks in the stream of work and wait for nothing, so the prefill that is split is the one
that is timed.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch

from sift_index.bench.clock import Clock, Run, cuda_clock

UPLOAD, ATTENTION = "upload_decode", "attention"
# Of reused KV: all of its loading, and the part of it that computing waited for.
LOAD, WAIT = "load", "wait"


class Laps(Protocol):
    """Adds up the time of named parts of one prefill."""

    def lap(self, name: str) -> AbstractContextManager[None]:
        """Return a block whose time is added to `name`; threads may have laps at a time."""

    def totals(self) -> dict[str, float]:
        """Return milliseconds by name, once the device is done."""


class DeviceLaps:
    """Laps between events of a CUDA device, on the stream that is current where they begin."""

    def __init__(self) -> None:
        self._laps: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def lap(self, name: str) -> Iterator[None]:
        """Time what is enqueued in the block."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        yield
        end.record()
        self._laps.append((name, begin, end))

    def totals(self) -> dict[str, float]:
        """Return milliseconds by name."""
        return _summed((name, begin.elapsed_time(end)) for name, begin, end in self._laps)


class HostLaps:
    """Laps on the host's clock, for devices that are done when a call returns."""

    def __init__(self) -> None:
        self._laps: list[tuple[str, float]] = []

    @contextmanager
    def lap(self, name: str) -> Iterator[None]:
        """Time the block."""
        started = time.perf_counter()
        yield
        self._laps.append((name, (time.perf_counter() - started) * 1e3))

    def totals(self) -> dict[str, float]:
        """Return milliseconds by name."""
        return _summed(self._laps)


def laps_of(device: torch.device) -> Laps:
    """Return new laps for a device."""
    return DeviceLaps() if device.type == "cuda" else HostLaps()


def prefill_clock(device: torch.device) -> Clock:
    """Return a clock for prefills: on a CPU every time is wall time."""
    return cuda_clock(device) if device.type == "cuda" else Clock(_host_time, _host_time)


def _host_time(run: Run, head_start_ms: float = 0.0) -> float:
    started = time.perf_counter()
    run()
    return (time.perf_counter() - started) * 1e3


def _summed(laps: Iterable[tuple[str, float]]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for name, milliseconds in laps:
        totals[name] = totals.get(name, 0.0) + milliseconds
    return totals
