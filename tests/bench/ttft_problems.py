"""A tiny model, a short case and instruments that tick as they are told, for tests of prefills."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

from sift_index.bench.clock import Clock
from sift_index.bench.ttft_cases import TTFTCase
from sift_index.bench.ttft_density import MeasuredDensity
from sift_index.bench.ttft_energy import EnergyMeter
from sift_index.bench.ttft_laps import HostLaps
from sift_index.bench.ttft_measure import Instruments, TTFTEffort
from sift_index.bench.ttft_stage import Stage
from tests.tiny import tiny_model_of

CASE = TTFTCase(tokens=600, document=130)
# In these documents LA bits are stored.
LONG_CASE = TTFTCase(tokens=1300, document=1100)
ONCE = TTFTEffort(warmup=1, repeats=1, window=0.0)
DENSITY = MeasuredDensity("tiny", 0.3, 0.5, np.full((2, 4), 0.3))


@lru_cache
def model() -> Any:
    """Return a Llama of two layers, four heads and head_dim 64."""
    return tiny_model_of("llama", head_dim=64)


@contextmanager
def stage_of(case: TTFTCase = CASE, **options: Any) -> Iterator[Stage]:
    """Set a case up, and clear it away."""
    stage = Stage(model(), case, DENSITY, **options)
    try:
        yield stage
    finally:
        stage.close()


def ticking(ms: float = 10.0, seconds: float = 0.0) -> Clock:
    """Every prefill takes `ms`; `now` moves by `seconds` at each look."""
    times = iter(seconds * count for count in range(10_000))

    def timer(run: Any, head_start_ms: float = 0.0) -> float:
        run()
        return ms

    return Clock(timer, timer, lambda: next(times))


def counting(joules: float = 2.0) -> EnergyMeter:
    """Each look at the counter finds `joules` more."""
    looks = iter(joules * count for count in range(10_000))
    return EnergyMeter(lambda: next(looks))


def instruments(ms: float = 10.0, seconds: float = 0.0, joules: float | None = None) -> Instruments:
    """Return instruments of a made-up clock, and of laps on the host's own."""
    energy = EnergyMeter(None, "nobody counts") if joules is None else counting(joules)
    return Instruments(ticking(ms, seconds), HostLaps, energy)
