"""What a benchmark says: rows of the results file, a table, and values for JSON."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any

import torch

from sift_index.bench.contenders import COMPACTION
from sift_index.bench.measure import CaseResult, Timing
from sift_index.bench.metadata import MetadataTimes
from sift_index.evaluation.results import ResultRow, result_rows, versions_of

BASELINE_TEXT = "dense FA3, same run"
COLUMNS = ["case", "ms", "TFLOP/s", "of FA3", "speed-up", "ideal", "of ideal", "error"]
# Fixed names under which tables and checks find the numbers of DESIGN section 8.
RATES = {
    "d128/64K/docs-1024/ca-1.00": "full-64k-d128",
    "d64/64K/docs-1024/ca-1.00": "full-64k-d64",
    "d128/64K/docs-1024/ca-0.10": "ca10-64k-d128",
    "d128/16K/docs-1024/ca-0.10": "ca10-16k-d128",
}
COMPACTIONS = {"d128/64K/docs-1024/ca-0.10": "ca10-64k"}
METADATA = "64k-64docs"
UNITS = {"ms": "ms", "tflops": "TFLOP/s", "error": "relative", "compaction_share": "share"}
Value = tuple[str, str, float, str]


def timing_values(result: CaseResult, timing: Timing) -> dict[str, float]:
    """Return the numbers of one contender in a case, by metric; those that exist.

    tflops, share_of_fa3: rates over issued tiles. speedup: dense FA3's time over this one.
    ideal_speedup, share_of_ideal: by score cells, so that half-empty tiles count as a loss.
    """
    values = {"ms": timing.ms, "tflops": timing.tflops}
    if timing.error is not None:
        values["error"] = timing.error
    if timing.contender.ours and result.compaction_ms is not None:
        values["compaction_share"] = result.compaction_ms / timing.ms
    dense = result.baseline
    if dense is None or dense is timing:
        return values
    values["share_of_fa3"] = timing.tflops / dense.tflops
    values["speedup"] = dense.ms / timing.ms
    if not timing.contender.dense:
        values["ideal_speedup"] = result.ideal
        values["share_of_ideal"] = values["speedup"] / result.ideal
    if "error" in values and dense.error:
        values["error_vs_fa3"] = values["error"] / dense.error
    return values


def case_rows(result: CaseResult, device: torch.device) -> list[ResultRow]:
    """Return a case's rows; ratios are to dense FA3 of the same run."""
    return _rows([*_case_values(result), *_headlines(result)], device, BASELINE_TEXT)


def metadata_rows(times: MetadataTimes, device: torch.device) -> list[ResultRow]:
    """Return the rows of uploading and decoding a plan."""
    values = [(METADATA, "metadata_ms", times.wall_ms, "ms")]
    values += [(METADATA, "metadata_gpu_ms", times.gpu_ms, "ms")]
    return _rows(values, device, "")


def _rows(values: Iterable[Value], device: torch.device, baseline: str) -> list[ResultRow]:
    peer, rows = versions_of(["fa3-fwd"]), result_rows(values, device, baseline)
    return [replace(row, versions={**row.versions, **peer}) for row in rows]


def _case_values(result: CaseResult) -> Iterator[Value]:
    for timing in result.timings:
        case = timing.contender.row_case(result.case)
        for metric, value in timing_values(result, timing).items():
            yield case, metric, value, UNITS.get(metric, "x")
    if result.compaction_ms is not None:
        yield f"{COMPACTION}/{result.case.label}", "ms", result.compaction_ms, "ms"


def _headlines(result: CaseResult) -> Iterator[Value]:
    """Yield the rows with fixed names: of the fastest of our paths."""
    label = result.case.label
    if label in COMPACTIONS and result.compaction_ms is not None:
        yield COMPACTIONS[label], "compaction_ms", result.compaction_ms, "ms"
    paths = [timing for timing in result.timings if timing.contender.ours]
    if label in RATES and paths and result.baseline is not None:
        fastest = min(paths, key=lambda timing: timing.ms)
        yield RATES[label], "rate_vs_fa3", fastest.tflops / result.baseline.tflops, "x"


def table_rows(results: Iterable[CaseResult]) -> list[list[str]]:
    """Return a line for each contender of each case, in the order of `COLUMNS`."""
    return [_line(result, timing) for result in results for timing in result.timings]


def _line(result: CaseResult, timing: Timing) -> list[str]:
    values = timing_values(result, timing)

    def shown(metric: str, form: str) -> str:
        return format(values[metric], form) if metric in values else ""

    return [
        timing.contender.row_case(result.case),
        shown("ms", ".3f"),
        shown("tflops", ".0f"),
        shown("share_of_fa3", ".3f"),
        shown("speedup", ".2f"),
        shown("ideal_speedup", ".2f"),
        shown("share_of_ideal", ".3f"),
        shown("error", ".5f"),
    ]


def progress_line(result: CaseResult) -> str:
    """Return a case in one line, such as `d128/64K/…: fa3 52.1 ms, triton 10.2 ms (5.11x)`."""
    parts = []
    for timing in result.timings:
        speedup = timing_values(result, timing).get("speedup")
        ratio = "" if speedup is None else f" ({speedup:.2f}x)"
        parts.append(f"{timing.contender.name} {timing.ms:.3f} ms{ratio}")
    return f"{result.case.label}: {', '.join(parts) or 'nothing could run'}"


def case_json(result: CaseResult) -> dict[str, Any]:
    """Return a case as JSON values."""
    return {
        "name": result.case.label,
        **asdict(result.case),
        "timings": {t.contender.name: timing_values(result, t) for t in result.timings},
        "compaction_ms": result.compaction_ms,
        "absent": dict(result.absent),
        "wrong": dict(result.wrong),
    }
