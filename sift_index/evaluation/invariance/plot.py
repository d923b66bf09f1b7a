"""Both claims by layer as a plot: what is found in the document alone, and what that costs."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sift_index.evaluation.figures import new_figure, save_figure
from sift_index.evaluation.invariance.measures import Invariance, InvarianceReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Pick = Callable[[Invariance[float]], float]
# Label, style (solid = found, dashed = share of tiles that this takes) and number of each line.
LOCAL_LINES: tuple[tuple[str, str, Pick], ...] = (
    ("high tiles found", "C0-", lambda found: found.la.tile_recall),
    ("high cells found", "C1-", lambda found: found.la.cell_recall),
    ("attention found", "C2-", lambda found: found.la.mass),
    ("tiles high alone", "k--", lambda found: found.la.density_alone),
    ("tiles high in the prompt", "k:", lambda found: found.la.density_prompt),
)


def plot_invariance(report: InvarianceReport, path: Path) -> None:
    """Write a PNG: recall by layer for both claims, densities dashed.

    Raises UsageError without matplotlib, or where the file cannot be written.
    """
    figure = new_figure()
    local, cross = figure.subplots(1, 2, sharey=True)
    local.set_title("Local attention: predicted from the document alone")
    for label, style, pick in LOCAL_LINES:
        _draw(local, report, label, style, pick)
    cross.set_title("Cross attention: predicted from the document alone")
    for number, policy in enumerate(report.overall.ca):
        _draw_policy(cross, report, policy, f"C{number % 10}")
    for axes in (local, cross):
        _finish(axes)
    local.set_ylabel("share")
    save_figure(figure, path)


def _draw_policy(axes: "Axes", report: InvarianceReport, policy: str, colour: str) -> None:
    lines: tuple[tuple[str, str, Pick], ...] = (
        ("high cells found", "-", lambda found: found.ca[policy].cells),
        ("attention found", "-.", lambda found: found.ca[policy].mass),
        ("density", "--", lambda found: found.ca[policy].density),
    )
    for label, style, pick in lines:
        _draw(axes, report, f"{policy}: {label}", f"{colour}{style}", pick)


def _draw(axes: "Axes", report: InvarianceReport, label: str, style: str, pick: Pick) -> None:
    axes.plot([pick(layer) for layer in report.layers], style, label=label)


def _finish(axes: "Axes") -> None:
    axes.set_xlabel("layer")
    axes.set_ylim(0, 1.02)
    axes.grid(True, alpha=0.25)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        legend = axes.legend(handles, labels, fontsize=8)
        for text in legend.get_texts():
            text.set_parse_math(False)  # a "$" in a name is a "$"
