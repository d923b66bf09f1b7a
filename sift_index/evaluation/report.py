"""An evaluation as tables for people, as JSON values, and as rows of a results file."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch

from sift_index.evaluation.metrics import Interval, PromptScore, bootstrap
from sift_index.evaluation.plots import PlotPoint
from sift_index.evaluation.results import ResultRow, data_label, interval_values, result_rows
from sift_index.evaluation.run import EvalReport

METRICS = (
    "density",
    "la_density",
    "ca_density",
    "kl",
    "top1",
    "nll",
    "f1",
    "em",
    "la_recall",
    "ca_recall",
)
UNITS = {"kl": "nats", "nll": "nats/token"}
COLUMNS = ["method", "density", "LA", "CA", "KL, nats", "top-1", "NLL"]
OPTIONAL_COLUMNS = {"f1": "F1", "ca_recall": "CA mass"}
DENSE = "dense"


def method_intervals(scores: list[PromptScore]) -> dict[str, Interval]:
    """Return every metric's mean and interval over a method's prompts; those not measured go."""
    found = {name: [getattr(score, name) for score in scores] for name in METRICS}
    return {name: bootstrap(values) for name, values in found.items() if None not in values}


def paired_change(report: EvalReport, method: str, name: str) -> Interval | None:
    """Return the mean change of a metric against dense, prompt by prompt, with its interval."""
    pairs = zip(report.scores[method], report.scores.get(DENSE, []), strict=False)
    changes = [(getattr(a, name), getattr(b, name)) for a, b in pairs]
    if not changes or any(None in pair for pair in changes):
        return None
    return bootstrap([found - dense for found, dense in changes])


def parts(report: EvalReport) -> Iterator[tuple[str, EvalReport]]:
    """Yield the whole evaluation, then each data set, then each source, where they differ."""
    yield "all", report
    for name in ("dataset", "source"):
        values = sorted({getattr(one, name) for one in report.asked})
        if len(values) > 1:
            yield from (
                (f"{name}: {value or 'unnamed'}", report.where(name, value)) for value in values
            )


def report_table(report: EvalReport) -> tuple[list[str], list[list[str]]]:
    """Return column names and rows of text: means, with intervals where they decide.

    What was not measured for any method has no column.
    """
    found = {method: method_intervals(scores) for method, scores in report.scores.items()}
    optional = [name for name in OPTIONAL_COLUMNS if any(name in one for one in found.values())]
    columns = [*COLUMNS, *(OPTIONAL_COLUMNS[name] for name in optional)]
    return columns, [_row(method, one, optional) for method, one in found.items()]


def _row(method: str, found: dict[str, Interval], optional: list[str]) -> list[str]:
    shares = [f"{found[name].mean:.3f}" for name in ("density", "la_density", "ca_density")]
    close = [_with_interval(found["kl"], 3), _with_interval(found["top1"], 2)]
    return [method, *shares, *close, *(_mean(found.get(name), 2) for name in ("nll", *optional))]


def report_values(report: EvalReport) -> dict[str, Any]:
    """Return the report as JSON values: means with intervals, also by part, and all scores."""
    return {
        "prompts": len(report.tokens),
        "prompt_tokens": report.tokens,
        "hits": report.hits,
        "misses": report.misses,
        "methods": _method_values(report),
        "parts": {
            name: {"prompts": len(part.tokens), "methods": _method_values(part)}
            for name, part in parts(report)
            if name != "all"
        },
        "questions": [asdict(one) for one in report.asked],
    }


def _method_values(report: EvalReport) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for method, scores in report.scores.items():
        values[method] = {name: vars(found) for name, found in method_intervals(scores).items()}
        for name in ("f1", "nll"):
            change = paired_change(report, method, name)
            if change is not None and method != DENSE:
                values[method][f"{name}_change"] = vars(change)
    return values


def report_rows(
    report: EvalReport, model: str, device: torch.device, variant: str = ""
) -> list[ResultRow]:
    """Return rows for `benchmarks/results/quality.json`: each metric with _lo and _hi bounds.

    The case is model/data set/method, `variant` behind the data set. Several data sets are also
    taken together, as model/first+second/method: there each prompt counts the same. F1 rows carry
    the dense model's F1 on the same prompts.
    """
    values: list[tuple[str, str, float, str]] = []
    for data, part in _by_data(report):
        for method in part.scores:
            values += _method_rows(part, f"{model}/{data}{variant}/{method}", method)
    return result_rows(values, device, baseline="dense attention, same prompts")


def _by_data(report: EvalReport) -> Iterator[tuple[str, EvalReport]]:
    datasets = sorted({one.dataset for one in report.asked})
    yield from ((name, report.where("dataset", name)) for name in datasets)
    if len(datasets) > 1:
        yield data_label(datasets), report


def _method_rows(
    report: EvalReport, case: str, method: str
) -> Iterator[tuple[str, str, float, str]]:
    found = method_intervals(report.scores[method])
    if DENSE in report.scores and "f1" in found:
        found["f1_dense"] = method_intervals(report.scores[DENSE])["f1"]
    yield case, "prompts", float(len(report.tokens)), "prompts"
    for name, interval in found.items():
        yield from interval_values(case, name, interval, UNITS.get(name, "share"))


def plot_points(report: EvalReport) -> list[PlotPoint]:
    """Return one point per method; levels and arguments of one method form a family."""
    points = []
    for method, scores in report.scores.items():
        found = method_intervals(scores)
        shares = (found["density"].mean, found["ca_density"].mean)
        points.append(PlotPoint(method, method.partition(":")[0], *shares, found["kl"]))
    return points


def _mean(found: Interval | None, digits: int) -> str:
    return "–" if found is None else f"{found.mean:.{digits}f}"


def _with_interval(value: Interval, digits: int) -> str:
    mean, low, high = (f"{number:.{digits}f}" for number in (value.mean, value.low, value.high))
    return f"{mean} [{low}, {high}]"
