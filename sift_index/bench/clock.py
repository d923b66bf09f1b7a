"""Timing one call: GPU time between events, wall time, and a clock for the budget."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import torch

Run = Callable[[], object]
# A GPU that is kept busy this long lets the host enqueue a call before its first kernel starts, as
# in a model, where the host is ahead. What takes the host longer than this is counted.
HEAD_START_MS = 3.0
# At about 2 GHz; with a slower clock the GPU only waits longer.
CYCLES_PER_MS = 2_000_000


class Timer(Protocol):
    """Returns the milliseconds of one call."""

    def __call__(self, run: Run, head_start_ms: float = HEAD_START_MS) -> float:
        """Time `run`; the GPU waits `head_start_ms` first, where there is one."""


@dataclass(frozen=True)
class Clock:
    """gpu: time on the device, launches hidden. wall: until the device is done. now: seconds."""

    gpu: Timer
    wall: Timer
    now: Callable[[], float] = time.monotonic


def cuda_clock(device: torch.device) -> Clock:
    """Return the clock of a CUDA device."""

    def between_events(run: Run, head_start_ms: float = HEAD_START_MS) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.device(device):
            torch.cuda._sleep(int(head_start_ms * CYCLES_PER_MS))
            begin.record()
            run()
            end.record()
            end.synchronize()
        return float(begin.elapsed_time(end))

    def until_done(run: Run, head_start_ms: float = HEAD_START_MS) -> float:
        torch.cuda.synchronize(device)
        started = time.perf_counter()
        run()
        torch.cuda.synchronize(device)
        return (time.perf_counter() - started) * 1e3

    return Clock(between_events, until_done)


def alternating(runs: Mapping[str, Run], timer: Timer, repeats: int) -> dict[str, float]:
    """Return the median milliseconds of each; they take turns, so that clocks drift for all.

    Every other turn goes backwards: who runs behind a long call finds a GPU that it slowed down.
    """
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats):
        for name in list(runs)[:: -1 if turn % 2 else 1]:
            samples[name].append(timer(runs[name]))
    return {name: median(found) for name, found in samples.items()}
