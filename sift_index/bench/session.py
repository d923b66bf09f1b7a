"""One benchmark from start to end: what is said while it runs, and what is kept of it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from sift_index.bench.accuracy import MOST_CHECKED_TOKENS
from sift_index.bench.cases import Case
from sift_index.bench.clock import Clock
from sift_index.bench.contenders import Contender
from sift_index.bench.measure import CaseResult
from sift_index.bench.metadata import MetadataTimes, metadata_times
from sift_index.bench.report import METADATA, case_json, case_rows, metadata_rows, progress_line
from sift_index.bench.run import RunOptions, run_cases
from sift_index.evaluation.results import (
    ResultRow,
    device_name,
    installed_versions,
    merge_results,
)

BENCH = "kernels"
Say = Callable[[str], None]
Known = Collection[tuple[str, str]]  # (case, metric) of rows


@dataclass
class KernelReport:
    """Everything a benchmark found, in the order in which it was found."""

    device: torch.device
    results: list[CaseResult] = field(default_factory=list)
    metadata: MetadataTimes | None = None
    left_out: list[Case] = field(default_factory=list)

    @property
    def wrong(self) -> dict[str, str]:
        """What is wrong with outputs, by contender and case; nobody should use those numbers."""
        return {
            f"{name}/{result.case.label}": what
            for result in self.results
            for name, what in result.wrong.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        times = self.metadata
        return {
            "device": device_name(self.device),
            "versions": installed_versions(),
            "metadata": None if times is None else vars(times),
            "cases": [case_json(result) for result in self.results],
            "left_out": [case.label for case in self.left_out],
        }


def missing_cases(
    cases: Sequence[Case], contenders: Sequence[Contender], known: Known
) -> list[Case]:
    """Return the cases of which a results file holds a time of none of our paths."""
    ours = [contender for contender in contenders if contender.ours]
    return [case for case in cases if not any((c.row_case(case), "ms") in known for c in ours)]


def bench_kernels(
    options: RunOptions,
    cases: Sequence[Case],
    contenders: Sequence[Contender],
    device: torch.device,
    clock: Clock,
    say: Say,
    results: Path | None = None,
    metadata: bool = True,
) -> KernelReport:
    """Run cases, say how they went, and merge each one's rows into `results` at once."""
    report = KernelReport(device)
    keep = _Keeper(report, say, results, len(cases))
    if options.check and options.too_long:
        say(
            f"outputs are not compared with the reference: expected prompts of at most "
            f"{MOST_CHECKED_TOKENS:,} tokens, found {min(options.cases.tokens):,} or more"
        )
    if metadata:
        report.metadata = metadata_times(device, clock, options.effort)
        keep.metadata(report.metadata)
    report.left_out = run_cases(options, cases, contenders, device, clock, keep.case)
    if report.left_out:
        names = ", ".join(case.label for case in report.left_out)
        say(f"left out, the budget of {options.budget:g} s is spent: {names}")
    return report


class _Keeper:
    """Says and keeps results as they come; a reason is said once."""

    def __init__(self, report: KernelReport, say: Say, results: Path | None, total: int) -> None:
        self._report, self._say, self._results, self._total = report, say, results, total
        self._said: set[tuple[str, str]] = set()

    def case(self, result: CaseResult) -> None:
        self._report.results.append(result)
        self._merge(case_rows(result, self._report.device))
        self._say(f"[{len(self._report.results)}/{self._total}] {progress_line(result)}")
        self._say_once("not timed", result.absent)
        self._say_once("WRONG", result.wrong)

    def metadata(self, times: MetadataTimes) -> None:
        self._merge(metadata_rows(times, self._report.device))
        self._say(
            f"{METADATA}: plan uploaded and decoded in {times.wall_ms:.3f} ms, "
            f"{times.gpu_ms:.3f} ms of them on the GPU"
        )

    def _merge(self, rows: list[ResultRow]) -> None:
        if self._results is not None:
            merge_results(self._results, BENCH, rows)

    def _say_once(self, verdict: str, reasons: Mapping[str, str]) -> None:
        for name, reason in reasons.items():
            if (name, reason) not in self._said:
                self._said.add((name, reason))
                self._say(f"{name}: {verdict}: {reason}")
