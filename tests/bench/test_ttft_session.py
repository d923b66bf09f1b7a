"""A whole benchmark of prefills on the CPU: budget, memory, what is kept at once and resumed."""

import json
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from sift_index.adapters import compiled
from sift_index.bench import ttft_session, ttft_stage
from sift_index.bench.ttft_cases import SDPA, SIFT, TTFTCase, TTFTOptions
from sift_index.bench.ttft_prefill import dense_prefill
from sift_index.bench.ttft_session import TTFTRun, bench_ttft, missing_cases
from sift_index.evaluation.results import read_results
from tests.bench.ttft_problems import ONCE, instruments, model

OPTIONS = TTFTOptions(tokens=(400, 500), documents=(130,), densities=(0.1,), kinds=(SDPA, SIFT))
RUN = TTFTRun(OPTIONS, ONCE, compile=False)
CASES = OPTIONS.cases()


def bench(run=RUN, cases=CASES, results=None, **tools):
    said: list[str] = []
    report = bench_ttft(run, model(), cases, instruments(**tools), said.append, results)
    return report, said


def test_cases_run_in_order_and_are_said():
    report, said = bench()
    assert said == [
        "energy is not counted: nobody counts",
        "[1/2] 400-doc130: dense-sdpa 10.0 ms, ca10 10.0 ms (1.00x)",
        "[2/2] 500-doc130: dense-sdpa 10.0 ms, ca10 10.0 ms (1.00x)",
    ]
    values = report.to_json()
    assert values["energy"] == "nobody counts" and not values["left_out"]
    assert values["cases"][0]["rows"]["ca10"]["speedup_vs_sdpa"] == 1.0


def test_who_cannot_run_is_said_once():
    kinds = ("dense-fa3", SIFT)
    _, said = bench(replace(RUN, options=replace(OPTIONS, kinds=kinds)))
    assert said.count("dense-fa3: not timed: the device is cpu, not CUDA") == 1


def test_the_budget_ends_a_run_between_cases():
    report, said = bench(replace(RUN, budget=1.5), seconds=1.0)
    assert [result.case.tokens for result in report.results] == [400]
    assert report.left_out == {"500-doc130": "the budget of 1.5 s is spent"}
    assert said[-1] == "500-doc130: left out: the budget of 1.5 s is spent"


def test_what_does_not_fit_into_memory_is_left_out(monkeypatch):
    monkeypatch.setattr(ttft_session, "free_bytes", lambda device: 10_000_000)
    big = TTFTCase(100_000, 130)
    report, _ = bench(cases=[CASES[0], big])
    assert [result.case.tokens for result in report.results] == [400]
    assert "found 0.0 GiB; take shorter prompts" in report.left_out[big.label]


def test_each_case_is_kept_before_the_next_begins(tmp_path, monkeypatch):
    path, seen = tmp_path / "ttft.json", []
    real = dense_prefill

    def watched(*given):
        seen.append({case for case, _ in read_results(path)})
        return real(*given)

    monkeypatch.setattr(ttft_stage, "dense_prefill", watched)
    bench(results=path)
    assert seen == [set(), {"400-ca10-doc130", "400-dense-sdpa-doc130"}]
    assert json.loads(path.read_text())["bench"] == "ttft"


def test_resuming_leaves_out_what_the_file_has(tmp_path):
    path = tmp_path / "ttft.json"
    bench(results=path, cases=CASES[:1])
    known = read_results(path)
    assert missing_cases(CASES, OPTIONS.rows(), known) == CASES[1:]
    more = replace(OPTIONS, densities=(0.1, 0.2)).rows()
    assert missing_cases(CASES, more, known) == CASES
    # A peer that is not installed must not make every case run again.
    assert (
        missing_cases(CASES, replace(OPTIONS, kinds=("dense-fa3", SIFT)).rows(), known)
        == (CASES[1:])
    )
    assert missing_cases(CASES, replace(OPTIONS, kinds=(SDPA,)).rows(), known) == CASES[1:]


def test_wrong_logits_are_reported(monkeypatch):
    nothing = torch.full((1, 1, 4), float("nan"))
    monkeypatch.setattr(ttft_stage, "dense_prefill", lambda *given: lambda laps: nothing)
    report, said = bench(cases=CASES[:1])
    assert report.wrong == {"400-dense-sdpa-doc130": "its logits are not finite"}
    assert "dense-sdpa: WRONG: its logits are not finite" in said


@pytest.mark.parametrize("wanted", [True, False])
def test_pieces_are_compiled_around_all_rows_or_none(monkeypatch, wanted):
    asked = []

    def pieces(model):
        asked.append(model)
        return nullcontext()

    monkeypatch.setattr(compiled, "compiled_pieces", pieces)
    bench(replace(RUN, compile=wanted))
    assert asked == ([model()] if wanted else [])
