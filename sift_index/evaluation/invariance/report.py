"""Both claims as tables for people, as JSON values and as rows of a results file."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import torch

from sift_index.evaluation.invariance.measures import Invariance, InvarianceReport, combine
from sift_index.evaluation.metrics import Interval
from sift_index.evaluation.results import ResultRow, interval_values, result_rows

Table = tuple[list[str], list[list[str]]]
LA_COLUMNS = {
    "tile_recall": "LA tiles",
    "cell_recall": "LA cells",
    "precision": "precision",
    "jaccard": "Jaccard",
    "mass": "LA mass",
    "density_alone": "on alone",
    "density_prompt": "on prompt",
}
CA_COLUMNS = {"cells": "cells", "mass": "mass", "density": "CA"}


def local_table(report: InvarianceReport) -> Table:
    """Return claim 1 alone; `on` are the shares of tiles that are high."""
    columns = ["layer", *LA_COLUMNS.values()]
    return columns, _rows(
        report, lambda found: [_text(getattr(found.la, name)) for name in LA_COLUMNS]
    )


def cross_table(report: InvarianceReport) -> Table:
    """Return claim 2 alone; `high %` of all cells are high, `CA` is a policy's density."""
    policies = list(report.overall.ca)
    columns = [
        "layer",
        "high %",
        *(f"{p} {name}" for p in policies for name in CA_COLUMNS.values()),
    ]

    def cells(found: Invariance[float]) -> list[str]:
        cross = (getattr(found.ca[policy], name) for policy in policies for name in CA_COLUMNS)
        # Of the order of 0.003: in percent it needs no more room than the others.
        return [_text(100 * found.ca_high), *map(_text, cross)]

    return columns, _rows(report, cells)


def invariance_values(report: InvarianceReport) -> dict[str, Any]:
    """Return the report as JSON values; a share with nothing to count is None."""
    layers = [
        {"layer": number, **asdict(combine([layer], lambda values: _known(values[0])))}
        for number, layer in enumerate(report.layers)
    ]
    return {
        "prompts": report.prompts,
        "documents": report.documents,
        "la_documents": report.la_documents,
        **asdict(report.limits),
        "pooled": _intervals(report.pooled),
        "overall": _intervals(report.overall),
        "layers": layers,
    }


def invariance_rows(
    report: InvarianceReport, model: str, data: str, device: torch.device
) -> list[ResultRow]:
    """Return rows for `benchmarks/results/invariance.json`, each share with _lo and _hi bounds.

    Claim 1 has the case model/data/alpha A, claim 2 model/data/beta B/policy: neither depends on
    the other's limit. Metrics are `pooled_` and `overall_` shares of the report; those with nothing
    to count have no row.
    """
    limits = report.limits
    la, ca = f"{model}/{data}/alpha {limits.alpha:g}", f"{model}/{data}/beta {limits.beta:g}"
    documents = {la: report.la_documents}
    documents |= {f"{ca}/{policy}": report.documents for policy in report.overall.ca}
    values: list[tuple[str, str, float, str]] = []
    for case, count in documents.items():
        values.append((case, "prompts", float(report.prompts), "prompts"))
        values.append((case, "documents", float(count), "documents"))
    for kind, means in (("pooled", report.pooled), ("overall", report.overall)):
        for case, name, share in _shares(means, la, ca):
            if not math.isnan(share.mean):
                values += interval_values(case, f"{kind}_{name}", share, "share")
    return result_rows(values, device, baseline="dense attention, same prompts")


def _shares(found: Invariance[Interval], la: str, ca: str) -> Iterator[tuple[str, str, Interval]]:
    """Yield every share with its case and name."""
    yield from ((la, name, getattr(found.la, name)) for name in LA_COLUMNS)
    for policy, cross in found.ca.items():
        yield f"{ca}/{policy}", "high", found.ca_high
        yield from ((f"{ca}/{policy}", name, getattr(cross, name)) for name in CA_COLUMNS)


def _rows(
    report: InvarianceReport, cells: Callable[[Invariance[float]], list[str]]
) -> list[list[str]]:
    named = [
        *((str(at), layer) for at, layer in enumerate(report.layers)),
        ("pooled", _means(report.pooled)),
        ("all", _means(report.overall)),
    ]
    return [[name, *cells(found)] for name, found in named]


def _means(found: Invariance[Interval]) -> Invariance[float]:
    return combine([found], lambda values: values[0].mean)


def _intervals(found: Invariance[Interval]) -> dict[str, Any]:
    def plain(values: list[Interval]) -> dict[str, float | None]:
        return {name: _known(value) for name, value in asdict(values[0]).items()}

    return asdict(combine([found], plain))


def _text(number: float) -> str:
    return "-" if math.isnan(number) else f"{number:.3f}"


def _known(number: float) -> float | None:
    return None if math.isnan(number) else number
