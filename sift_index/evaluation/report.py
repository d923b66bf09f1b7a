"""An evaluation as a table for people, as JSON values, and as rows of a results file."""

from typing import Any

import torch

from sift_index.evaluation.metrics import Interval, PromptScore, bootstrap
from sift_index.evaluation.results import ResultRow, result_rows
from sift_index.evaluation.run import EvalReport

METRICS = ("density", "la_density", "ca_density", "kl", "top1", "nll")
UNITS = {"kl": "nats", "nll": "nats/token"}


def method_intervals(scores: list[PromptScore]) -> dict[str, Interval]:
    """Return every metric's mean and interval over a method's prompts."""
    return {name: bootstrap([getattr(score, name) for score in scores]) for name in METRICS}


def report_table(report: EvalReport) -> tuple[list[str], list[list[str]]]:
    """Return column names and rows of text: means, with intervals where they decide."""
    columns = ["method", "density", "LA", "CA", "KL, nats", "top-1", "NLL"]
    rows = []
    for method, scores in report.scores.items():
        found = method_intervals(scores)
        shares = [f"{found[name].mean:.3f}" for name in ("density", "la_density", "ca_density")]
        close = [_with_interval(found["kl"], 3), _with_interval(found["top1"], 2)]
        rows.append([method, *shares, *close, f"{found['nll'].mean:.2f}"])
    return columns, rows


def report_values(report: EvalReport) -> dict[str, Any]:
    """Return the report as JSON values."""
    return {
        "prompts": len(report.tokens),
        "prompt_tokens": report.tokens,
        "hits": report.hits,
        "misses": report.misses,
        "methods": {
            method: {name: vars(interval) for name, interval in method_intervals(scores).items()}
            for method, scores in report.scores.items()
        },
    }


def report_rows(report: EvalReport, case: str, device: torch.device) -> list[ResultRow]:
    """Return rows for `benchmarks/results/quality.json`: each metric with _lo and _hi bounds."""
    values: list[tuple[str, str, float, str]] = []
    for method, scores in report.scores.items():
        where = f"{case}/{method}"
        values.append((where, "prompts", len(scores), "prompts"))
        for name, found in method_intervals(scores).items():
            unit = UNITS.get(name, "share")
            bounds = (("", found.mean), ("_lo", found.low), ("_hi", found.high))
            values += [(where, f"{name}{end}", value, unit) for end, value in bounds]
    return result_rows(values, device, baseline="dense attention, same prompts")


def _with_interval(value: Interval, digits: int) -> str:
    mean, low, high = (f"{number:.{digits}f}" for number in (value.mean, value.low, value.high))
    return f"{mean} [{low}, {high}]"
