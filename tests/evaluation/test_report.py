"""What an evaluation says: means, intervals and changes, by part, as text, JSON and rows."""

import json
from dataclasses import replace

import pytest
import torch

from sift_index.evaluation.ledger import Scored
from sift_index.evaluation.metrics import Interval, PromptScore, bootstrap
from sift_index.evaluation.report import (
    COLUMNS,
    METRICS,
    method_intervals,
    paired_change,
    parts,
    plot_points,
    report_rows,
    report_table,
    report_values,
)
from sift_index.evaluation.run import EvalReport

PLACES = [("hops", "wiki"), ("hops", "news"), ("needles", "")]
DENSE = [
    PromptScore(0.0, 1.0, nll, 1.0, 1.0, 1.0, f1, f1) for nll, f1 in ((2, 1), (3, 0.5), (4, 0.25))
]
SIFT = [
    PromptScore(0.01 * n, 1 - n / 10, 2.5 + n, 0.2 * n, 0.3 * n, 0.1 * n, f1, 0.0, 0.9, 0.8)
    for n, f1 in ((1, 0.5), (2, 0.75), (3, 0.25))
]
EPIC = [replace(score, la_recall=None, ca_recall=None) for score in SIFT]
METHODS = {"dense": DENSE, "sift": SIFT, "epic:9": EPIC}


def report_of(methods, hits: int = 0) -> EvalReport:
    """Return a report of three questions whose second has a document the index lacks."""
    asked = [
        Scored(
            str(n),
            *PLACES[n],
            prompt=f"digest {n}",
            tokens=tokens,
            scores={name: scores[n] for name, scores in methods.items()},
            hits=hits,
            misses=int(n == 1) if hits else 0,
        )
        for n, tokens in enumerate((100, 200, 3000))
    ]
    return EvalReport(tuple(methods), asked)


REPORT = report_of(METHODS, hits=2)
SILENT = report_of(
    {name: [replace(s, f1=None, em=None) for s in scores] for name, scores in METHODS.items()}
)


def values_of(scores, name: str) -> list[float]:
    return [getattr(score, name) for score in scores]


def test_every_metric_has_its_mean_and_interval_over_prompts():
    found = method_intervals(SIFT)
    assert set(found) == set(METRICS) == set(vars(SIFT[0]))
    for name in METRICS:
        assert found[name] == bootstrap(values_of(SIFT, name))
    assert found["kl"].mean == pytest.approx(0.02)
    assert found["kl"].low < found["kl"].mean < found["kl"].high


def test_what_was_not_measured_for_every_prompt_is_left_out():
    assert set(METRICS) - set(method_intervals(EPIC)) == {"la_recall", "ca_recall"}
    mixed = [SIFT[0], replace(SIFT[1], f1=None)]
    assert set(METRICS) - set(method_intervals(mixed)) == {"f1"}


# --- changes against dense ---------------------------------------------------------------------


def test_a_change_is_paired_prompt_by_prompt():
    found = paired_change(REPORT, "sift", "f1")
    assert found == bootstrap([-0.5, 0.25, 0.0])
    assert found is not None and found.mean == pytest.approx(-0.25 / 3)
    # Means alone would give a wider interval.
    assert found.high - found.low < 1.0
    assert paired_change(REPORT, "sift", "nll") == bootstrap([1.5, 1.5, 1.5])
    assert paired_change(REPORT, "dense", "f1") == Interval(0.0, 0.0, 0.0)


def test_without_dense_or_without_answers_there_is_no_change():
    alone = report_of({"sift": SIFT})
    assert paired_change(alone, "sift", "f1") is None
    assert paired_change(SILENT, "sift", "f1") is None
    assert paired_change(SILENT, "sift", "nll") is not None
    assert paired_change(REPORT, "epic:9", "ca_recall") is None


# --- parts -------------------------------------------------------------------------------------


def test_parts_are_data_sets_and_sources_where_there_are_several():
    found = dict(parts(REPORT))
    assert list(found) == [
        *("all", "dataset: hops", "dataset: needles"),
        *("source: unnamed", "source: news", "source: wiki"),
    ]
    assert found["all"] is REPORT
    assert found["dataset: hops"].scores["sift"] == SIFT[:2]
    assert found["dataset: hops"].tokens == [100, 200]
    assert found["source: unnamed"].asked == REPORT.asked[2:]
    assert (found["source: news"].hits, found["source: news"].misses) == (2, 1)
    assert found["source: wiki"].scores == {
        "dense": DENSE[:1],
        "sift": SIFT[:1],
        "epic:9": EPIC[:1],
    }


def test_one_data_set_and_one_source_have_no_parts():
    one = REPORT.where("source", "news")
    assert [name for name, _ in parts(one)] == ["all"]
    assert [name for name, _ in parts(REPORT.where("dataset", "hops"))] == [
        *("all", "source: news", "source: wiki")
    ]


# --- for people --------------------------------------------------------------------------------


def test_the_table_has_a_row_per_method():
    columns, rows = report_table(REPORT)
    assert columns == [*COLUMNS, "F1", "CA mass"]
    assert {len(row) for row in rows} == {len(columns)}
    by_name = {row[0]: dict(zip(columns, row, strict=True)) for row in rows}
    assert list(by_name) == ["dense", "sift", "epic:9"]
    low, high = (getattr(bootstrap(values_of(SIFT, "kl")), end) for end in ("low", "high"))
    assert by_name["sift"] == {
        "method": "sift",
        "density": "0.400",
        "LA": "0.600",
        "CA": "0.200",
        "KL, nats": f"0.020 [{low:.3f}, {high:.3f}]",
        "top-1": "0.80 [0.70, 0.90]",
        "NLL": "4.50",
        "F1": "0.50",
        "CA mass": "0.80",
    }
    assert by_name["dense"]["CA mass"] == by_name["epic:9"]["CA mass"] == "–"
    assert by_name["dense"]["F1"] == "0.58"


def test_what_no_method_measured_has_no_column():
    columns, rows = report_table(SILENT)
    assert "F1" not in columns
    assert {len(row) for row in rows} == {len(columns)}


# --- for programs ------------------------------------------------------------------------------


def test_values_hold_methods_parts_and_every_score():
    values = json.loads(json.dumps(report_values(REPORT), allow_nan=False))
    assert {name: values[name] for name in ("prompts", "prompt_tokens", "hits", "misses")} == {
        "prompts": 3,
        "prompt_tokens": [100, 200, 3000],
        "hits": 6,
        "misses": 1,
    }
    assert values["methods"]["sift"]["kl"] == vars(bootstrap(values_of(SIFT, "kl")))
    assert values["methods"]["sift"]["f1_change"] == vars(bootstrap([-0.5, 0.25, 0.0]))
    assert values["methods"]["sift"]["nll_change"]["mean"] == pytest.approx(1.5)
    assert set(values["methods"]["dense"]) == set(METRICS) - {"la_recall", "ca_recall"}
    assert set(values["methods"]["epic:9"]) == {
        *(set(METRICS) - {"la_recall", "ca_recall"}),
        *("f1_change", "nll_change"),
    }
    assert set(values["parts"]) == {name for name, _ in parts(REPORT)} - {"all"}
    needles = values["parts"]["dataset: needles"]
    assert needles["prompts"] == 1
    assert needles["methods"]["sift"]["f1_change"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert needles["methods"]["sift"]["ca_density"]["mean"] == pytest.approx(0.3)
    assert values["questions"][1] == {
        "id": "1",
        "dataset": "hops",
        "source": "news",
        "prompt": "digest 1",
        "policies": {},
        "tokens": 200,
        "hits": 2,
        "misses": 1,
        "scores": {
            "dense": vars(DENSE[1]),
            "sift": vars(SIFT[1]),
            "epic:9": vars(EPIC[1]),
        },
    }


def test_rows_have_a_case_per_model_data_set_and_method():
    rows = report_rows(REPORT, "tiny", torch.device("cpu"))
    by_name = {(row.case, row.metric): row for row in rows}
    assert len(by_name) == len(rows)
    assert {row.case for row in rows} == {
        f"tiny/{dataset}/{method}"
        for dataset in ("hops", "needles", "hops+needles")
        for method in ("dense", "sift", "epic:9")
    }
    hops = bootstrap(values_of(SIFT[:2], "f1"))
    for name, value in (("f1", hops.mean), ("f1_lo", hops.low), ("f1_hi", hops.high)):
        assert by_name["tiny/hops/sift", name].value == value
    dense = bootstrap(values_of(DENSE[:2], "f1"))
    for name, value in (("_lo", dense.low), ("_hi", dense.high), ("", dense.mean)):
        assert by_name["tiny/hops/sift", f"f1_dense{name}"].value == value
    assert by_name["tiny/hops/sift", "prompts"].value == 2.0
    assert by_name["tiny/needles/epic:9", "prompts"].value == 1.0
    units = {
        name: by_name["tiny/hops/sift", name].unit for name in ("kl", "nll_hi", "f1", "prompts")
    }
    assert units == {"kl": "nats", "nll_hi": "nats/token", "f1": "share", "prompts": "prompts"}
    metrics = {metric for case, metric in by_name if case == "tiny/needles/sift"}
    assert metrics == {"prompts"} | {
        f"{name}{end}" for name in (*METRICS, "f1_dense") for end in ("", "_lo", "_hi")
    }
    assert ("tiny/hops/epic:9", "ca_recall") not in by_name
    assert {row.baseline for row in rows} == {"dense attention, same prompts"}


def test_rows_of_several_data_sets_are_also_pooled_over_prompts():
    rows = report_rows(REPORT, "tiny", torch.device("cpu"), " (other prefix)")
    by_name = {(row.case, row.metric): row.value for row in rows}
    case = "tiny/hops+needles (other prefix)/sift"
    pooled, dense = bootstrap(values_of(SIFT, "kl")), bootstrap(values_of(DENSE, "f1"))
    # Each prompt counts the same: not the mean of the two data sets' means.
    apart = [by_name[f"tiny/{name} (other prefix)/sift", "kl"] for name in ("hops", "needles")]
    assert pooled.mean == pytest.approx(0.02) and sum(apart) / 2 == pytest.approx(0.0225)
    assert by_name[case, "prompts"] == 3.0
    for end, value in (("", pooled.mean), ("_lo", pooled.low), ("_hi", pooled.high)):
        assert by_name[case, f"kl{end}"] == value
    assert by_name[case, "f1_dense_hi"] == dense.high


def test_one_data_set_has_no_pooled_rows():
    rows = report_rows(REPORT.where("dataset", "hops"), "tiny", torch.device("cpu"))
    assert {row.case.split("/")[1] for row in rows} == {"hops"}


def test_rows_without_answers_or_without_dense_have_no_dense_f1():
    alone = report_of({"sift": SIFT})
    for report, has_f1 in ((SILENT, False), (alone, True)):
        metrics = {row.metric for row in report_rows(report, "m", torch.device("cpu"))}
        assert not metrics & {"f1_dense", "f1_dense_lo"}
        assert ("f1" in metrics) == has_f1


# --- for plots ---------------------------------------------------------------------------------


def test_points_of_one_method_with_other_arguments_are_a_family():
    report = report_of({"sift:2": SIFT, "dense": DENSE, "sift": SIFT})
    points = plot_points(report)
    assert [(point.label, point.family) for point in points] == [
        ("sift:2", "sift"),
        ("dense", "dense"),
        ("sift", "sift"),
    ]
    assert points[0].density == pytest.approx(0.4)
    assert points[0].ca_density == pytest.approx(0.2)
    assert points[0].kl == bootstrap(values_of(SIFT, "kl"))
