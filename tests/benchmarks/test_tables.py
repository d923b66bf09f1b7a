"""README tables come from results files."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import tables
from benchmarks.tables import (
    BLOCKS,
    CROSS,
    LOCAL,
    MARKED,
    PAGES,
    Block,
    invariance_table,
    kl_at,
    of_data,
    policies_table,
    quality_table,
    render,
)
from sift_index.evaluation.results import ResultRow, merge_results, read_results
from sift_index.selection.policy import read_policy

ROOT = Path(__file__).parent.parent.parent


def row(case: str, metric: str, value: float) -> ResultRow:
    unit = "nats" if metric.startswith("kl") else "share"
    return ResultRow(case, metric, value, unit, "dense", "2026-01-01", "CPU", {}, "command")


def rows_of(case: str, **values: float) -> list[dict[str, object]]:
    return [vars(row(case, name, value)) for name, value in values.items()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_shows_what_the_results_say(page):
    text = page.read_text(encoding="utf-8")
    assert render(text) == text, "run `python -m benchmarks.tables`"


def test_every_table_stands_on_one_page():
    found = [name for page in PAGES for name in MARKED.findall(page.read_text(encoding="utf-8"))]
    assert sorted(found) == sorted(BLOCKS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_interval_in_the_text_was_measured(page):
    measured: set[tuple[str, ...]] = set()
    for path in tables.RESULTS.glob("*.json"):
        rows = read_results(path)
        for case, metric in rows:
            names = [(case, f"{metric}{end}") for end in ("", "_lo", "_hi")]
            if all(name in rows for name in names):
                values = [rows[name]["value"] for name in names]
                measured |= {tuple(f"{v:z.{digits}f}" for v in values) for digits in (1, 3, 4)}
    text = MARKED.sub("", page.read_text(encoding="utf-8"))
    found = re.findall(r"(-?\d\.\d+)\s+\[(-?\d\.\d+),\s+(-?\d\.\d+)\]", text)
    assert found
    assert [one for one in found if one not in measured] == []


def test_every_block_has_rows_and_only_the_main_ones_are_in_the_readme():
    for name, block in BLOCKS.items():
        lines = block.render(tables.RESULTS).splitlines()
        assert len(lines) > 4, name
    readme = PAGES[0].read_text(encoding="utf-8")
    assert MARKED.findall(readme) == ["ttft", "speed", "quality", "storage", "build-speed", "build"]


def test_speed_stands_beside_dense_attention_on_the_same_data():
    rows = [
        *rows_of("fa3/d128/64K/docs-1024/ca-0.10", ms=50.0, tflops=700.0),
        *rows_of("gluon/d128/64K/docs-1024/ca-0.10", ms=8.0, tflops=600.0, speedup=6.25),
        *rows_of("triton/d128/64K/docs-1024/ca-0.10", ms=14.0, tflops=300.0, speedup=3.5),
        *rows_of("fa3/d128/64K/docs-1024/ca-0.05", ms=51.0, tflops=700.0),
        *rows_of("gluon/d128/64K/docs-1024/ca-0.05", ms=5.0, tflops=500.0, speedup=10.2),
        *rows_of("64k-64docs", metadata_ms=2.0),
    ]
    assert tables.speed_table(rows).splitlines() == [
        "| CA density | dense FA3, ms | sparse, ms | speed-up |",
        "|---|---|---|---|",
        "| ca-0.10 | 50 | 8 | 6.250 |",
        "| ca-0.05 | 51 | 5 | 10 |",
        "",
        "Measured on CPU: d128, 64K, docs-1024.",
    ]
    assert [line.split(" | ")[0] for line in tables.paths_table(rows).splitlines()[2:7]] == [
        "| ca-0.05/fa3",
        "| ca-0.05/gluon",
        "| ca-0.10/fa3",
        "| ca-0.10/gluon",
        "| ca-0.10/triton",
    ]


def test_a_page_keeps_what_is_around_its_tables(tmp_path, monkeypatch):
    merge_results(tmp_path / "r.json", "r", [row("m/a/x", "kl", 0.5), row("m/b/x", "kl", 0.25)])
    monkeypatch.setitem(BLOCKS, "one", Block("r", quality_table, of_data("b")))
    text = "before\n<!-- results:one -->\nold\n<!-- end:one -->\nbetween <!-- end:one -->"
    table = "| method | KL, nats |\n|---|---|\n| x | 0.2500 |\n\nMeasured on CPU: m, b."
    assert render(text, tmp_path) == text.replace("old", table)


def test_check_says_which_pages_are_old(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("<!-- results:build -->\n<!-- end:build -->")
    monkeypatch.setattr(tables, "PAGES", (page,))
    monkeypatch.setattr("sys.argv", ["tables", "--check"])
    assert tables.main() == 1 and len(page.read_text().splitlines()) == 2
    monkeypatch.setattr("sys.argv", ["tables"])
    assert tables.main() == 0
    monkeypatch.setattr("sys.argv", ["tables", "--check"])
    assert tables.main() == 0


def test_own_probes_stand_apart_from_the_methods_of_their_data_set():
    main, own = of_data("a+b"), of_data("a+b", own_probes=True)
    cases = ["m/a+b/sift", "m/a+b/policy:own-probes@2", "m/a/sift", "m/a+b (other prefix)/sift"]
    assert [main(case) for case in cases] == [True, False, False, False]
    assert [own(case) for case in cases] == [False, True, False, False]


def test_the_quality_table_begins_with_the_closest_and_leaves_out_what_is_missing():
    rows = [
        *rows_of("m/b/far", prompts=8, kl=0.5, kl_lo=0.25, kl_hi=1.0, top1=-0.00001, density=1),
        *rows_of("m/b/near", prompts=8, kl=0.01234, top1=0.5, density=0.25),
        *rows_of("m/a/far", prompts=24, kl=0.125, top1=0.75, density=0.5, f1=0.5),
    ]
    assert quality_table(rows).splitlines() == [
        "| data / method | prompts | density | KL, nats | top-1 | F1 |",
        "|---|---|---|---|---|---|",
        "| a/far | 24 | 0.500 | 0.1250 | 0.750 | 0.500 |",
        "| b/near | 8 | 0.250 | 0.0123 | 0.500 | – |",
        "| b/far | 8 | 1 | 0.5000 [0.2500, 1.0000] | 0.000 | – |",
        "",
        "Measured on CPU: m.",
    ]


def test_a_study_s_table_shows_what_was_compared_with_its_reference():
    rows = [
        *rows_of("s/m/a+b/new@0.1", prompts=8, la_density=0.25, kl=0.5, la_density_ratio=0.75),
        *rows_of("s/m/a+b/old@0.1", prompts=8, la_density=0.5, kl=0.25),
    ]
    assert tables.study_table(rows, tables.LA_KEYS).splitlines() == [
        "| family@threshold | prompts | LA density | of 128 keys at this KL | KL, nats |",
        "|---|---|---|---|---|",
        "| old@0.1 | 8 | 0.500 | – | 0.2500 |",
        "| new@0.1 | 8 | 0.250 | 0.750 | 0.5000 |",
        "",
        "Measured on CPU: s, m, a+b.",
    ]
    cases = ["s/m/a+b/new@0.1", "other/m/a+b/new@0.1"]
    assert [tables.of_study("s")(case) for case in cases] == [True, False]


def test_the_invariance_table_has_both_means_of_a_case():
    local = rows_of("m/d/alpha 0.1", prompts=2, pooled_precision=0.25, overall_precision=0.75)
    lines = invariance_table(local, LOCAL).splitlines()
    assert lines[0] == "| limit | prompts | precision |"
    assert lines[2:4] == [
        "| alpha 0.1, all together | 2 | 0.250 |",
        "| alpha 0.1, by head and layer | 2 | 0.750 |",
    ]
    cross = [
        *rows_of("m/d/beta 0.01/paper", pooled_cells=0.5, overall_cells=0.25),
        *rows_of("m/d/beta 0.01/probe", pooled_cells=0.75, overall_cells=0.125),
    ]
    lines = invariance_table(cross, CROSS).splitlines()
    assert lines[0] == "| policy | high scores found |"
    assert lines[5] == "| probe, by head and layer | 0.125 |"
    assert lines[-1] == "Measured on CPU: m, d, beta 0.01."


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
            assert not any(place in found["command"] for place in (" /", "/.", " .", "/tmp")), found


def test_the_default_policy_carries_what_the_results_say():
    rows = read_results(tables.RESULTS / "quality.json")
    (entry,) = read_policy("probe").quality
    metrics = {"prompts": "prompts", "ca_density": "ca_density", "density": "density"}
    for name in ("kl", "top1"):
        metrics |= {name: name, f"{name}_low": f"{name}_lo", f"{name}_high": f"{name}_hi"}
    for name, metric in metrics.items():
        found = rows["smollm2-135m/musique+wikimqa/sift", metric]
        digits = 4 if name.startswith("kl") else 3
        assert (entry[name], entry["date"]) == (round(found["value"], digits), found["date"]), name


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
