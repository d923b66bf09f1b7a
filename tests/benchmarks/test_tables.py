"""README tables come from results files."""

import json
from pathlib import Path

import pytest

from benchmarks.tables import kl_at, policies_table, render
from sift_index.evaluation.results import ResultRow, merge_results

ROOT = Path(__file__).parent.parent.parent


def row(case: str, metric: str, value: float) -> ResultRow:
    return ResultRow(case, metric, value, "share", "dense", "2026-01-01", "CPU", {}, "command")


def test_the_readme_shows_what_the_results_say():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert render(readme) == readme, "run `python -m benchmarks.tables`"


def test_a_run_replaces_its_own_rows_and_keeps_the_others(tmp_path):
    path = tmp_path / "quality.json"
    merge_results(path, "quality", [row("a", "kl", 0.1), row("b", "kl", 0.2)])
    merge_results(path, "quality", [row("a", "kl", 0.3)])
    rows = json.loads(path.read_text())["rows"]
    assert [(r["case"], r["value"]) for r in rows] == [("a", 0.3), ("b", 0.2)]


def test_every_recorded_row_names_device_versions_and_command():
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        for found in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            assert found["device"] and found["versions"] and found["command"], (path, found)


def test_kl_at_a_density_is_log_linear_between_the_points_around_it():
    points = [(0.5, 0.001), (0.1, 0.1), (0.3, 0.01)]
    assert kl_at(0.3, points) == pytest.approx(0.01)
    assert kl_at(0.4, points) == pytest.approx((0.01 * 0.001) ** 0.5)
    assert kl_at(0.2, points) == pytest.approx((0.1 * 0.01) ** 0.5)
    # Beyond the ends the nearest line goes on.
    assert kl_at(0.7, points) == pytest.approx(0.0001)
    assert kl_at(0.0, points) == pytest.approx(0.1 * 10**0.5)


def test_the_policies_table_ranks_by_mean_kl():
    def point(policy: str, level: int, density: float, kl: float) -> list[dict[str, object]]:
        case = f"m/data/policy:{policy}@{level}"
        values = {"ca_density": density, "kl": kl, "prompts": 8}
        return [vars(row(case, name, value)) for name, value in values.items()]

    rows = [
        *point("window-1", 1, 0.4, 0.01),
        *point("window-1", 2, 0.2, 0.04),
        *point("other", 1, 0.3, 0.01),
        *point("other", 2, 0.1, 0.02),
    ]
    lines = policies_table(rows).splitlines()
    assert lines[2] == "| other | 0.0100 | 0.0100 | -50% |"
    assert lines[3] == "| window-1 | 0.0200 | 0.0200 | +0% |"
    assert lines[-1] == "8 prompts of each data set, measured on CPU."
