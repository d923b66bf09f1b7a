"""Both claims as tables for people and as JSON values."""

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from sift_index.evaluation.invariance.measures import Invariance, InvarianceReport, combine
from sift_index.evaluation.metrics import Interval

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


def invariance_table(report: InvarianceReport) -> Table:
    """Return column names and rows of text for both claims: a row per layer, `pooled`, `all`.

    Means only; the intervals of the last two are in `invariance_values`.
    """
    columns, rows = local_table(report)
    cross_columns, cross_rows = cross_table(report)
    both = [[*a, *b[1:]] for a, b in zip(rows, cross_rows, strict=True)]
    return [*columns, *cross_columns[1:]], both


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
