"""The benchmark of prefills from start to end: cases in order, each kept as soon as it is done."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from sift_index.bench.ttft_cases import Row, TTFTCase, TTFTOptions
from sift_index.bench.ttft_density import MeasuredDensity, measured_density
from sift_index.bench.ttft_measure import (
    Instruments,
    TTFTEffort,
    TTFTResult,
    free_unused,
    measure_prefills,
)
from sift_index.bench.ttft_model import free_bytes, misfit
from sift_index.bench.ttft_report import case_json, progress_line, ttft_rows
from sift_index.bench.ttft_stage import Stage
from sift_index.evaluation.results import device_name, installed_versions, merge_results

BENCH = "ttft"
Say = Callable[[str], None]
Known = Collection[tuple[str, str]]  # (case, metric) of rows


@dataclass(frozen=True)
class TTFTRun:
    """How to run cases. budget: seconds behind which no case begins; None for no end.

    disk: folder for KV files. compile: run the model's pointwise parts compiled, in all rows.
    """

    options: TTFTOptions
    effort: TTFTEffort = TTFTEffort()
    compile: bool = True
    budget: float | None = None
    disk: Path | None = None


@dataclass
class TTFTReport:
    """Everything that was found, in the order in which it was found. left_out: why, by case."""

    device: torch.device
    energy: str = ""
    results: list[TTFTResult] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def wrong(self) -> dict[str, str]:
        """What is wrong with logits, by row and case; nobody should use those numbers."""
        return {
            result.case.row_name(name): what
            for result in self.results
            for name, what in result.wrong.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return JSON values. energy: why it was not counted, or empty."""
        return {
            "device": device_name(self.device),
            "versions": installed_versions(),
            "energy": self.energy,
            "cases": [case_json(result) for result in self.results],
            "left_out": self.left_out,
        }


def missing_cases(cases: Sequence[TTFTCase], rows: Sequence[Row], known: Known) -> list[TTFTCase]:
    """Return the cases of which a results file lacks a row; dense ones count where they are all."""
    wanted = [row for row in rows if not row.dense] or rows
    return [
        case
        for case in cases
        if any((case.row_name(row.name), "ttft_ms") not in known for row in wanted)
    ]


def bench_ttft(
    run: TTFTRun,
    model: Any,
    cases: Sequence[TTFTCase],
    instruments: Instruments,
    say: Say,
    results: Path | None = None,
) -> TTFTReport:
    """Run cases, say how they went, and merge each one's rows into `results` at once."""
    device = next(model.parameters()).device
    report = TTFTReport(device, instruments.energy.reason)
    if report.energy:
        say(f"energy is not counted: {report.energy}")
    cases_run = CaseRunner(run, model, instruments)
    keep = _Keeper(report, say, results, len(cases))
    end = instruments.clock.now() + (float("inf") if run.budget is None else run.budget)
    with pieces(model, run.compile):
        for case in cases:
            if instruments.clock.now() >= end:
                keep.left_out(case, f"the budget of {run.budget:g} s is spent")
            elif (reason := cases_run.obstacle(case)) is not None:
                keep.left_out(case, reason)
            else:
                keep.result(cases_run.measure(case, run.options.rows()))
    return report


def pieces(model: Any, wanted: bool) -> AbstractContextManager[None]:
    """Return the block in which the model's pointwise parts run compiled, where that is wanted."""
    if not wanted:
        return nullcontext()
    from sift_index.adapters.compiled import compiled_pieces

    return compiled_pieces(model)


class CaseRunner:
    """Measures cases of one model, one after the other."""

    def __init__(self, run: TTFTRun, model: Any, instruments: Instruments) -> None:
        self._run, self._model, self._instruments = run, model, instruments
        self._measured: MeasuredDensity = measured_density()

    def obstacle(self, case: TTFTCase) -> str | None:
        """Return why a case does not fit into the device's memory, or None."""
        free = free_bytes(next(self._model.parameters()).device)
        return misfit(self._model.config, case.tokens, self._model.dtype.itemsize, free)

    def stage(self, case: TTFTCase) -> Stage:
        """Return what a case needs; close it."""
        return Stage(self._model, case, self._measured, self._run.options.seed, self._run.disk)

    def measure(self, case: TTFTCase, rows: Sequence[Row]) -> TTFTResult:
        """Time these rows of a case, and give its memory back."""
        stage = self.stage(case)
        try:
            return measure_prefills(stage, rows, self._instruments, self._run.effort)
        finally:
            stage.close()
            free_unused(stage.device)


class _Keeper:
    """Says and keeps results as they come."""

    def __init__(self, report: TTFTReport, say: Say, results: Path | None, total: int) -> None:
        self._report, self._say, self._results, self._total = report, say, results, total
        self._reasons = Reasons(say)

    def result(self, result: TTFTResult) -> None:
        self._report.results.append(result)
        if self._results is not None:
            merge_results(self._results, BENCH, ttft_rows(result, self._report.device))
        self._say(f"[{len(self._report.results)}/{self._total}] {progress_line(result)}")
        self._reasons.of(result)

    def left_out(self, case: TTFTCase, reason: str) -> None:
        self._report.left_out[case.label] = reason
        self._say(f"{case.label}: left out: {reason}")


class Reasons:
    """Says why rows were not timed, or how they differ from their names; each reason once."""

    def __init__(self, say: Say) -> None:
        self._say, self._said = say, set[str]()

    def of(self, result: TTFTResult) -> None:
        """Say what is new in a result."""
        self._each("not timed", result.absent)
        self._each("WRONG", result.wrong)
        self._each("note", {t.row.name: t.note for t in result.timings if t.note})

    def _each(self, verdict: str, reasons: Mapping[str, str]) -> None:
        for name, reason in reasons.items():
            line = f"{name}: {verdict}: {reason}"
            if line not in self._said:
                self._said.add(line)
                self._say(line)
