"""Figures for plots: made without pyplot, whose global state would meddle with a notebook's own.

matplotlib is optional and imported when the first figure is made.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from sift_index.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE_INCHES = (12.0, 5.5)
DPI = 150


def new_figure() -> "Figure":
    """Return an empty figure; raises UsageError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise UsageError("plots need matplotlib: pip install 'sift-index[plot]'") from problem
    figure = Figure(figsize=SIZE_INCHES, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure as PNG and its folder; raises UsageError where that is not possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png")
    except OSError as problem:
        raise UsageError(f"{path} cannot be written: {problem}; give another path") from problem
