"""Plots of an evaluation: how far each method moves from dense attention, and what it visits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sift_index.errors import UsageError
from sift_index.evaluation.figures import new_figure, save_figure
from sift_index.evaluation.metrics import Interval
from sift_index.formats.presence import is_folder
from sift_index.outputs import require_writable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = (
    ("ca_density", "CA density, share of cells between documents"),
    ("density", "total density, share of causal cells"),
)


@dataclass(frozen=True)
class PlotPoint:
    """One method's means: densities as shares, KL in nats; a family is one rule, many settings."""

    label: str
    family: str
    density: float
    ca_density: float
    kl: Interval


def require_plots(path: Path) -> None:
    """Raise UsageError where no plot could be written: no matplotlib, or no place for the file.

    An hour of evaluation must not end in this.
    """
    new_figure()
    require_writable(path)
    if is_folder(path):
        raise UsageError(f"{path} cannot be written: it is a folder; give the path of a file")


def plot_divergence(points: Sequence[PlotPoint], path: Path, title: str) -> None:
    """Write a PNG of KL, on a log axis with 95 % bars, against CA density and total density.

    Points of one family share a colour and a line. A KL of zero has no place on a log axis: such
    methods, as dense attention itself, are left out. Raises UsageError without matplotlib, where
    no point is left, or where the file cannot be written.
    """
    shown = [point for point in points if point.kl.mean > 0 and math.isfinite(point.kl.mean)]
    if not shown:
        raise UsageError(
            f"expected a method with a KL above zero to plot, found none among {len(points)}; "
            "evaluate a sparse method"
        )
    figure = new_figure()
    figure.suptitle(title, parse_math=False)
    for axes, (field, name) in zip(figure.subplots(1, 2, sharey=True), PANELS, strict=True):
        _draw_panel(axes, shown, field)
        axes.set_xlabel(name)
    figure.axes[0].set_ylabel("KL(dense to sparse), nats")
    _draw_legend(figure)
    save_figure(figure, path)


def _draw_panel(axes: "Axes", points: Sequence[PlotPoint], field: str) -> None:
    axes.set_yscale("log")
    axes.grid(True, which="both", alpha=0.25)
    axes.margins(x=0.18)  # room for the last label
    for number, family in enumerate(dict.fromkeys(point.family for point in points)):
        members = [point for point in points if point.family == family]
        members.sort(key=lambda point: float(getattr(point, field)))
        _draw_family(axes, members, field, colour=f"C{number % 10}")


def _draw_family(axes: "Axes", members: Sequence[PlotPoint], field: str, colour: str) -> None:
    places = [float(getattr(point, field)) for point in members]
    means = [point.kl.mean for point in members]
    # One prompt's interval can miss its mean by a rounding error, and a bar has no negative length.
    below = [max(point.kl.mean - point.kl.low, 0.0) for point in members]
    above = [max(point.kl.high - point.kl.mean, 0.0) for point in members]
    axes.errorbar(
        places, means, (below, above), label=members[0].family, color=colour, capsize=3, marker="o"
    )
    for point, place in zip(members, places, strict=True):
        _label(axes, point.label, (place, point.kl.mean), colour)


def _label(axes: "Axes", text: str, place: tuple[float, float], colour: str) -> None:
    axes.annotate(
        text,
        place,
        xytext=(6, 5),
        textcoords="offset points",
        fontsize=8,
        color=colour,
        parse_math=False,
    )


def _draw_legend(figure: "Figure") -> None:
    handles, families = figure.axes[0].get_legend_handles_labels()
    legend = figure.legend(handles, families, loc="outside lower center", ncols=4)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a "$" in a name is a "$"
