"""What the benchmark of prefills says: rows of the results file, a table, and values for JSON."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any

import torch

from sift_index.bench.ttft_cases import CUDNN, FA3, SDPA
from sift_index.bench.ttft_measure import PrefillTiming, TTFTResult
from sift_index.evaluation.results import ResultRow, result_rows, versions_of

TITLES = {FA3: "dense FA3", CUDNN: "dense cuDNN", SDPA: "dense SDPA"}
SPEEDUPS = {FA3: "speedup_vs_fa3", CUDNN: "speedup_vs_cudnn", SDPA: "speedup_vs_sdpa"}
UNITS = {
    "metadata_bytes": "bytes",
    "kv_bytes": "bytes",
    "computed_share": "share",
    "density": "share",
    "ca_density": "share",
    "la_density": "share",
    "energy_j": "J",
    "edp": "J s",
    "ed2p": "J s^2",
}
# Columns of the table by metric, with their format.
SHOWN = {
    "ttft_ms": ("ms", ",.1f"),
    "attention_ms": ("attention", ",.1f"),
    "rest_ms": ("rest", ",.1f"),
    "upload_decode_ms": ("upload+decode", ".2f"),
    "wait_ms": ("wait for KV", ",.1f"),
    "compose_ms": ("compose", ".2f"),
    "speedup_vs_fa3": ("of FA3", ".2f"),
    "speedup_vs_cudnn": ("of cuDNN", ".2f"),
    "speedup_vs_sdpa": ("of SDPA", ".2f"),
    "ca_density": ("CA", ".3f"),
    "density": ("density", ".3f"),
    "energy_j": ("J", ",.0f"),
    "edp_vs_dense": ("dense EDP / its", ".2f"),
}
PACKAGES = ("fa3-fwd", "nvidia-ml-py")


def own_values(timing: PrefillTiming) -> dict[str, float]:
    """Return the numbers of one row by metric, without ratios to others.

    compose_ms is apart from ttft_ms; edp and ed2p are energy times seconds, and seconds squared.
    """
    values = {"ttft_ms": timing.ms}
    values |= {f"{name}_ms": ms for name, ms in timing.parts.items()}
    values |= timing.numbers
    if timing.joules is not None:
        seconds = timing.ms / 1e3
        values["energy_j"] = timing.joules
        values["edp"] = timing.joules * seconds
        values["ed2p"] = timing.joules * seconds**2
    return values


def ratios(result: TTFTResult, timing: PrefillTiming) -> dict[str, dict[str, float]]:
    """Return ratios to dense rows of the same run, by the dense row's kind and metric.

    edp_vs_dense is to the first dense row that ran: FA3 where it is installed.
    """
    found: dict[str, dict[str, float]] = defaultdict(dict)
    others = {kind: dense for kind, dense in result.dense.items() if dense is not timing}
    for kind, dense in others.items():
        found[kind][SPEEDUPS[kind]] = dense.ms / timing.ms
    first = next(iter(result.dense.items()), None)
    if first is not None and first[0] in others and first[1].joules and timing.joules:
        mine = timing.joules * timing.ms
        found[first[0]]["edp_vs_dense"] = first[1].joules * first[1].ms / mine
    return found


def all_values(result: TTFTResult, timing: PrefillTiming) -> dict[str, float]:
    """Return a row's own numbers and its ratios, by metric."""
    values = own_values(timing)
    for part in ratios(result, timing).values():
        values |= part
    return values


def ttft_rows(result: TTFTResult, device: torch.device) -> list[ResultRow]:
    """Return a case's rows for the results file."""
    rows: list[ResultRow] = []
    for baseline, values in _by_baseline(result).items():
        rows += result_rows(values, device, baseline)
    peers = versions_of(PACKAGES)
    return [replace(row, versions={**row.versions, **peers}) for row in rows]


def _by_baseline(result: TTFTResult) -> dict[str, list[tuple[str, str, float, str]]]:
    found: dict[str, list[tuple[str, str, float, str]]] = defaultdict(list)
    for timing in result.timings:
        case = result.case.row_name(timing.row.name)
        for metric, value in own_values(timing).items():
            found[""].append((case, metric, value, UNITS.get(metric, "ms")))
        for kind, part in ratios(result, timing).items():
            for metric, value in part.items():
                found[f"{TITLES[kind]}, same run"].append((case, metric, value, "x"))
    return found


def columns(results: Iterable[TTFTResult]) -> list[str]:
    """Return the metrics that any row of the results has, in the order of `SHOWN`."""
    measured = {name for r in results for t in r.timings for name in all_values(r, t)}
    return [metric for metric in SHOWN if metric in measured]


def table_lines(results: Iterable[TTFTResult], metrics: list[str]) -> Iterator[list[str]]:
    """Yield a line for each row of each case: its name, then these metrics."""
    for result in results:
        for timing in result.timings:
            values = all_values(result, timing)
            cells = [format(values[m], SHOWN[m][1]) if m in values else "" for m in metrics]
            yield [result.case.row_name(timing.row.name), *cells]


def progress_line(result: TTFTResult) -> str:
    """Return a case in one line, such as `64k: dense-fa3 3,201 ms, ca10 1,750 ms (1.83x)`."""
    parts = []
    for timing in result.timings:
        found = [part[SPEEDUPS[kind]] for kind, part in ratios(result, timing).items()]
        ratio = f" ({found[0]:.2f}x)" if found and not timing.row.dense else ""
        parts.append(f"{timing.row.name} {timing.ms:,.1f} ms{ratio}")
    return f"{result.case.label}: {', '.join(parts) or 'nothing could run'}"


def case_json(result: TTFTResult) -> dict[str, Any]:
    """Return a case as JSON values."""
    return {
        "name": result.case.label,
        **asdict(result.case),
        "rows": {timing.row.name: all_values(result, timing) for timing in result.timings},
        "absent": dict(result.absent),
        "wrong": dict(result.wrong),
    }
