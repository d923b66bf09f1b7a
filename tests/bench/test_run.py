"""A whole benchmark on the CPU: order, budget, what is kept at once, and what is said."""

import json
from dataclasses import replace

import pytest
import torch

from sift_index.bench.contenders import Contender
from sift_index.bench.measure import Effort
from sift_index.bench.metadata import MetadataTimes
from sift_index.bench.paths import path
from sift_index.bench.report import (
    COLUMNS,
    METADATA,
    RATES,
    case_rows,
    metadata_rows,
    progress_line,
    table_rows,
)
from sift_index.bench.run import RunOptions
from sift_index.bench.session import KernelReport, bench_kernels, missing_cases
from sift_index.evaluation.results import read_results
from tests.bench.problems import CPU, FA3, TINY, clock, raising, returning

OURS = path("reference")
CASES = TINY.cases()
FULL, SPARSE = (case.label for case in CASES)
ABSENT = raising(ImportError("no cudnn here"), name="cudnn")


def run(
    *contenders: Contender, seconds: float = 0.0, results=None, cases=CASES, **changes
) -> tuple[KernelReport, list[str]]:
    said: list[str] = []
    options = RunOptions(TINY, Effort(warmup=1, repeats=1), **changes)
    ticking = clock(seconds=seconds)
    report = bench_kernels(
        options, cases, contenders, CPU, ticking, said.append, results, metadata=False
    )
    return report, said


def test_cases_run_in_order_and_are_said():
    report, said = run(FA3, ABSENT, OURS)
    assert [result.case.label for result in report.results] == [FULL, SPARSE]
    assert said == [
        f"[1/2] {FULL}: fa3 2.000 ms, reference 2.000 ms (1.00x)",
        "cudnn: not timed: ImportError: no cudnn here",
        f"[2/2] {SPARSE}: fa3 2.000 ms, reference 2.000 ms (1.00x)",
    ]
    assert not report.wrong and not report.left_out


def test_the_budget_ends_a_run_between_cases():
    report, said = run(FA3, OURS, seconds=1.0, budget=2.5)
    assert [case.label for case in report.left_out] == [SPARSE]
    assert said[-1] == f"left out, the budget of 2.5 s is spent: {SPARSE}"
    assert report.to_json()["left_out"] == [SPARSE]
    nothing, _ = run(FA3, OURS, seconds=1.0, budget=0.5)
    assert len(nothing.left_out) == 2 and not nothing.results


def test_some_are_timed_once_for_each_shape():
    once = replace(FA3, name="cudnn", once=True)
    longer = replace(TINY, tokens=(520, 530)).cases()
    report, _ = run(FA3, once, OURS, cases=longer)
    named = [[timing.contender.name for timing in result.timings] for result in report.results]
    assert named == 2 * [["fa3", "cudnn", "reference"], ["fa3", "reference"]]
    rows = {row.case for result in report.results for row in case_rows(result, CPU)}
    assert {"cudnn/d64/520", "cudnn/d64/530"} <= rows


def test_each_case_is_kept_before_the_next_begins(tmp_path):
    path_, seen = tmp_path / "kernels.json", []

    def build(problem):
        seen.append({case for case, _ in read_results(path_)} if path_.exists() else set())
        return OURS.build(problem)

    run(FA3, replace(OURS, build=build), results=path_)
    assert f"reference/{FULL}" not in seen[0] and f"reference/{FULL}" in seen[1]
    assert json.loads(path_.read_text())["bench"] == "kernels"
    assert {case for case, _ in read_results(path_)} == {
        f"{name}/{label}" for name in ("fa3", "reference", "compaction") for label in (FULL, SPARSE)
    }


def test_resuming_leaves_out_what_a_path_of_ours_has(tmp_path):
    results = tmp_path / "kernels.json"
    run(FA3, OURS, results=results, cases=CASES[:1])
    known = read_results(results)
    assert [case.label for case in missing_cases(CASES, [FA3, OURS], known)] == [SPARSE]
    assert missing_cases(CASES, [FA3, path("triton")], known) == CASES
    assert missing_cases(CASES, [path("triton"), OURS], known) == CASES[1:]


def test_wrong_outputs_are_said_and_reported():
    report, said = run(FA3, OURS, returning(torch.zeros(4, 520, 64)), cases=CASES[:1])
    assert report.wrong == {f"wrong/{FULL}": "relative error 1, above 0.02"}
    assert "wrong: WRONG: relative error 1, above 0.02" in said


def test_prompts_too_long_for_the_reference_are_not_compared(monkeypatch):
    monkeypatch.setattr("sift_index.bench.run.MOST_CHECKED_TOKENS", 500)
    report, said = run(FA3, OURS)
    assert said[0].startswith("outputs are not compared with the reference")
    assert all(timing.error is None for result in report.results for timing in result.timings)
    assert "compared" not in run(FA3, OURS, check=False)[1][0]


def test_only_the_shortest_prompts_are_compared():
    longer = replace(TINY, tokens=(520, 530))
    options = RunOptions(longer)
    assert [options.checks(case) for case in longer.cases()] == [True, True, False, False]


# --- rows and table ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sparse():
    """A sparse case in which ours takes 2 ms, and dense FA3 three times as long."""
    report, _ = run(FA3, OURS, cases=CASES[1:])
    [result] = report.results
    fa3, ours = result.timings
    slower = replace(fa3, ms=6.0, tflops=fa3.tflops / 3, error=0.002)
    return replace(result, timings=(slower, replace(ours, error=0.003)), compaction_ms=0.5)


def values_of(result) -> dict[tuple[str, str], float]:
    return {(row.case, row.metric): row.value for row in case_rows(result, CPU)}


def test_rows_name_path_and_case(sparse):
    values, ours = values_of(sparse), f"reference/{SPARSE}"
    assert SPARSE == "d64/520/docs-130/ca-0.30"
    assert {metric for case, metric in values if case == ours} == {
        *("ms", "tflops", "share_of_fa3", "speedup", "ideal_speedup", "share_of_ideal"),
        *("error", "error_vs_fa3", "compaction_share"),
    }
    assert {metric for case, metric in values if case == f"fa3/{SPARSE}"} == {
        *("ms", "tflops", "error")
    }
    assert values[ours, "speedup"] == 3.0
    assert values[ours, "share_of_ideal"] == 3.0 / values[ours, "ideal_speedup"]
    fa3, mine = sparse.timings
    assert values[ours, "share_of_fa3"] == mine.tflops / fa3.tflops
    assert values[ours, "error_vs_fa3"] == pytest.approx(1.5)
    assert values[ours, "compaction_share"] == 0.25
    assert values[f"compaction/{SPARSE}", "ms"] == 0.5
    row = case_rows(sparse, CPU)[0]
    assert (row.unit, row.baseline) == ("ms", "dense FA3, same run")


def test_without_a_baseline_there_are_no_ratios(sparse):
    values = values_of(replace(sparse, timings=sparse.timings[1:], compaction_ms=None))
    assert {metric for _, metric in values} == {"ms", "tflops", "error"}


def test_fixed_names_tell_the_fastest_path(sparse, monkeypatch):
    monkeypatch.setitem(RATES, SPARSE, "ca30-tiny")
    fa3, ours = sparse.timings
    faster = replace(ours, contender=path("gluon"), ms=1.0, tflops=2 * ours.tflops)
    values = values_of(replace(sparse, timings=(fa3, ours, faster)))
    assert values["ca30-tiny", "rate_vs_fa3"] == faster.tflops / fa3.tflops
    assert ("ca30-tiny", "rate_vs_fa3") not in values_of(replace(sparse, timings=(ours,)))


def test_metadata_has_fixed_names():
    rows = metadata_rows(MetadataTimes(64, 0.9, 0.2), CPU)
    assert [(row.case, row.metric, row.value) for row in rows] == [
        *((METADATA, "metadata_ms", 0.9), (METADATA, "metadata_gpu_ms", 0.2))
    ]


def test_the_table_has_a_line_for_each_contender(sparse):
    fa3, ours = table_rows([sparse])
    assert fa3[0] == f"fa3/{SPARSE}" and fa3[3:7] == ["", "", "", ""]
    assert ours[0] == f"reference/{SPARSE}" and ours[1] == "2.000" and ours[4] == "3.00"
    assert ours[-1] == "0.00300"
    assert {len(fa3), len(ours)} == {len(COLUMNS)}


def test_a_case_nobody_could_run_is_said():
    report, said = run(ABSENT)
    assert said[0] == f"[1/2] {FULL}: nothing could run"
    assert progress_line(report.results[0]).endswith("nothing could run")
