"""Plots: a picture is written, with a bar and a name for each point."""

import subprocess
import sys

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.image import imread

from sift_index.errors import UsageError
from sift_index.evaluation.figures import DPI, SIZE_INCHES
from sift_index.evaluation.metrics import Interval, bootstrap
from sift_index.evaluation.plots import PlotPoint, plot_divergence, require_plots


def point(label, family, density, kl):
    return PlotPoint(label, family, density, density / 2, Interval(kl, kl * 0.8, kl * 1.3))


DENSE = PlotPoint("dense", "dense", 1.0, 1.0, Interval(0.0, 0.0, 0.0))
POINTS = [
    point("probe 0.001", "policy: probe", 0.7, 0.004),
    point("paper", "paper", 0.75, 0.06),
    point("probe 0.01", "policy: probe", 0.3, 0.05),
    DENSE,
]


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved while the test runs."""
    figures: list[Figure] = []
    save = Figure.savefig

    def keep(figure, *args, **kwargs):
        figures.append(figure)
        return save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def bars(axes: Axes) -> list[ErrorbarContainer]:
    return [item for item in axes.containers if isinstance(item, ErrorbarContainer)]


def test_a_png_is_written(tmp_path):
    path = tmp_path / "new" / "quality.png"
    plot_divergence(POINTS, path, "SmolLM2-135M")
    assert path.read_bytes().startswith(b"\x89PNG")
    pixels = imread(path)
    assert pixels.shape[:2] == (SIZE_INCHES[1] * DPI, SIZE_INCHES[0] * DPI)
    assert path.stat().st_size > 10_000
    assert pixels[..., :3].std() > 0.05  # not a blank page


def test_two_panels_with_names_lines_and_bars(tmp_path, drawn):
    plot_divergence(POINTS, tmp_path / "p.png", "title")
    panels = drawn[0].axes
    assert [axes.get_yscale() for axes in panels] == ["log", "log"]
    for axes, share in zip(panels, (0.5, 1.0), strict=True):
        assert {text.get_text() for text in axes.texts} == {"probe 0.001", "probe 0.01", "paper"}
        probe, paper = bars(axes)
        line = np.array([[0.3 * share, 0.05], [0.7 * share, 0.004]])
        assert probe.lines[0].get_xydata() == pytest.approx(line)
        bar = np.array([[0.75 * share, 0.06 * 0.8], [0.75 * share, 0.06 * 1.3]])
        assert paper.lines[2][0].get_segments()[0] == pytest.approx(bar)


def test_the_legend_names_each_family_once(tmp_path, drawn):
    plot_divergence(POINTS, tmp_path / "p.png", "title")
    names = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert names == ["policy: probe", "paper"]


def test_intervals_that_touch_zero_or_miss_the_mean(tmp_path):
    zero = PlotPoint("one", "one", 0.5, 0.5, Interval(0.01, 0.0, 0.02))
    missed = PlotPoint("two", "two", 0.5, 0.5, Interval(0.01, 0.01 + 1e-17, 0.01 - 1e-17))
    above = PlotPoint("three", "three", 0.5, 0.5, Interval(0.01, 0.011, 0.012))
    single = PlotPoint("four", "four", 0.5, 0.5, bootstrap([0.1]))
    plot_divergence([zero, missed, above, single], tmp_path / "p.png", "title")
    assert imread(tmp_path / "p.png").size


def test_a_dollar_is_no_formula(tmp_path):
    plot_divergence([point("$\\x$", "$\\y$", 0.5, 0.1)], tmp_path / "p.png", "$\\z$")
    assert (tmp_path / "p.png").exists()


@pytest.mark.parametrize("kl", [0.0, float("nan"), float("inf")])
def test_nothing_to_draw_is_refused(tmp_path, kl):
    with pytest.raises(UsageError, match="a KL above zero to plot, found none among 2"):
        plot_divergence([DENSE, point("x", "x", 0.5, kl)], tmp_path / "p.png", "title")
    assert not (tmp_path / "p.png").exists()


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "p.png"):
        with pytest.raises(UsageError, match="cannot be written: .*; give another path"):
            plot_divergence(POINTS, path, "title")
        with pytest.raises(UsageError, match="cannot be written: .*; give "):
            require_plots(path)


def test_what_is_required_before_a_long_evaluation(tmp_path):
    require_plots(tmp_path / "new" / "p.png")
    assert not (tmp_path / "new" / "p.png").exists()
    plot_divergence(POINTS, tmp_path / "new" / "p.png", "title")


@pytest.mark.parametrize("module", ["matplotlib.figure", "matplotlib.backends.backend_agg"])
def test_without_matplotlib(tmp_path, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    message = r"plots need matplotlib: pip install 'sift-index\[plot\]'"
    with pytest.raises(UsageError, match=message):
        plot_divergence(POINTS, tmp_path / "p.png", "title")
    with pytest.raises(UsageError, match=message):
        require_plots(tmp_path / "p.png")


def test_neither_matplotlib_nor_pyplot_is_imported_before_it_is_needed(tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from sift_index.evaluation.plots import Interval, PlotPoint, plot_divergence\n"
        "assert 'matplotlib' not in sys.modules\n"
        "one = PlotPoint('a', 'a', 0.5, 0.5, Interval(0.1, 0.1, 0.1))\n"
        "plot_divergence([one], Path(sys.argv[1]), 't')\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "p.png")], check=True)
