"""One case: every row that can run is warmed up, looked at, and then timed in turns."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Protocol

import torch

from sift_index.bench.clock import Clock
from sift_index.bench.measure import Effort, reason_of
from sift_index.bench.ttft_cases import DENSE, Row, TTFTCase
from sift_index.bench.ttft_energy import EnergyMeter
from sift_index.bench.ttft_laps import LOAD, Laps
from sift_index.bench.ttft_stage import Contender

NOTHING_COUNTS = EnergyMeter(None, "energy was not asked for")


@dataclass(frozen=True)
class Instruments:
    """What measures. laps: new ones for each prefill."""

    clock: Clock
    laps: Callable[[], Laps]
    energy: EnergyMeter = NOTHING_COUNTS


@dataclass(frozen=True)
class TTFTEffort(Effort):
    """How often everything runs. window: seconds that a turn repeats a prefill for, at least.

    The energy counter moves ten times a second, so a turn of one short prefill would miss it.
    """

    warmup: int = 1
    repeats: int = 3
    window: float = 1.0


@dataclass(frozen=True)
class PrefillTiming:
    """One row's numbers: medians in ms, joules of one prefill (None: not counted).

    parts: laps by name, and `rest`, what is in no lap that computing waits for.
    numbers: as `Contender.numbers`.
    """

    row: Row
    ms: float
    parts: Mapping[str, float]
    joules: float | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class TTFTResult:
    """All numbers of a case. absent: who could not run, and why; wrong: whose logits are none."""

    case: TTFTCase
    timings: tuple[PrefillTiming, ...]
    absent: Mapping[str, str] = field(default_factory=dict)
    wrong: Mapping[str, str] = field(default_factory=dict)

    @property
    def dense(self) -> dict[str, PrefillTiming]:
        """Dense rows that ran, by kind, the one that others are compared with first."""
        found = {timing.row.kind: timing for timing in self.timings if timing.row.dense}
        return {kind: found[kind] for kind in DENSE if kind in found}


class Building(Protocol):
    """A case, and how its rows are set up (`Stage`)."""

    case: TTFTCase

    def contender(self, row: Row) -> Contender:
        """Return a row's prefill. Raises what says why it cannot run."""


def measure_prefills(
    stage: Building, rows: Iterable[Row], instruments: Instruments, effort: TTFTEffort
) -> TTFTResult:
    """Time a case; whoever cannot run is absent, and says why."""
    ready: dict[str, _Turns] = {}
    absent: dict[str, str] = {}
    wrong: dict[str, str] = {}
    for row in rows:
        try:
            turns = _Turns(stage.contender(row), instruments, effort)
            turns.warm_up()
            ready[row.name] = turns
        except _WrongLogits as problem:
            wrong[row.name] = str(problem)
        except Exception as problem:
            absent[row.name] = reason_of(problem)
    for _ in range(effort.repeats):
        for turns in ready.values():
            turns.take()
    timings = tuple(turns.timing() for turns in ready.values())
    return TTFTResult(stage.case, timings, absent, wrong)


class _WrongLogits(Exception):
    """A prefill ran, to logits that nobody should use."""


class _Turns:
    """One row's turns: how long its prefills took, where, and what they used."""

    def __init__(self, contender: Contender, instruments: Instruments, effort: TTFTEffort) -> None:
        self._contender, self._with, self._effort = contender, instruments, effort
        self._times: list[float] = []
        self._parts: list[dict[str, float]] = []
        self._joules: list[float] = []

    def warm_up(self) -> None:
        """Run unmeasured. Raises _WrongLogits."""
        for _ in range(self._effort.warmup):
            logits = self._contender.prefill(self._with.laps())
            if not bool(logits.isfinite().all()):  # waits for the device
                raise _WrongLogits("its logits are not finite")

    def take(self) -> None:
        """Take a turn: one prefill, or as many as fill the window where energy is counted."""
        joules = self._with.energy.joules
        if joules is None:
            self._one()
            return
        before, first = joules(), len(self._times)
        while sum(self._times[first:]) < 1e3 * self._effort.window or first == len(self._times):
            self._one()
        self._joules.append((joules() - before) / (len(self._times) - first))

    def timing(self) -> PrefillTiming:
        """Return the numbers of all turns."""
        names = {name for parts in self._parts for name in parts}
        parts = {name: median(found.get(name, 0.0) for found in self._parts) for name in names}
        ms = median(self._times)
        # Loading runs beside computing; what computing waited for is a lap of its own.
        parts["rest"] = ms - sum(value for name, value in parts.items() if name != LOAD)
        joules = sum(self._joules) / len(self._joules) if self._joules else None
        found = self._contender
        return PrefillTiming(found.row, ms, parts, joules, found.numbers, found.note)

    def _one(self) -> None:
        laps = self._with.laps()
        self._times.append(self._with.clock.wall(partial(self._contender.prefill, laps)))
        self._parts.append(laps.totals())


def free_unused(device: torch.device) -> None:
    """Give a case's memory back, so that the next one finds whole blocks."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
