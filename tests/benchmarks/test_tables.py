"""README tables come from results files."""

import json
from pathlib import Path

from benchmarks.tables import render
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
