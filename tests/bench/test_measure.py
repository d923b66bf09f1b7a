"""One case: who is timed, who is absent and why, and whose output is wrong."""

from dataclasses import replace

import pytest
import torch

from sift_index.bench.cases import Case, CaseOptions
from sift_index.bench.clock import alternating
from sift_index.bench.contenders import Contender
from sift_index.bench.measure import CaseResult, Effort, measure_case
from sift_index.bench.metadata import metadata_times
from sift_index.bench.paths import path
from sift_index.bench.work import causal_tiles, issued_tiles, tflops
from sift_index.errors import UsageError
from sift_index.kernels.api import MaskLayout, plan_density
from tests.bench.problems import CPU, FA3, clock, problem_of, raising, returning

CASE = Case(520, 64, 130, 0.3)
ONCE = Effort(warmup=1, repeats=1)


def measured(*contenders: Contender, check: bool = True, case: Case = CASE) -> CaseResult:
    return measure_case(problem_of(case), contenders, clock(), ONCE, check)


def test_the_median_of_turns_counts():
    order: list[str] = []
    times = {"a": [9.0, 1.0, 2.0], "b": [5.0, 5.0, 7.0]}

    def timer(run, head_start_ms: float = 0.0) -> float:
        run()
        return times[order[-1]].pop(0)

    runs = {name: (lambda name=name: order.append(name)) for name in "ab"}
    assert alternating(runs, timer, repeats=3) == {"a": 2.0, "b": 5.0}
    assert order == list("abbaab")


def test_rates_count_each_contenders_own_tiles():
    result, problem = measured(FA3, path("reference")), problem_of(CASE)
    fa3, ours = result.timings
    assert (fa3.ms, ours.ms, result.compaction_ms) == (2.0, 2.0, 2.0)
    assert fa3.tflops == tflops(causal_tiles(520, 4), 64, 2.0)
    assert ours.tflops == tflops(issued_tiles(problem.plan), 64, 2.0)
    total = plan_density(problem.plan.source).total
    assert result.ideal == total.causal / total.visited > 1
    assert result.baseline is fa3 and not result.absent and not result.wrong


def test_errors_are_relative_to_the_same_mask_in_float32():
    result = measured(FA3, path("reference"))
    assert all(0.0005 < (timing.error or 0) < 0.01 for timing in result.timings)
    unchecked = measured(FA3, path("reference"), check=False)
    assert [timing.error for timing in unchecked.timings] == [None, None]
    # Dense attention is far from the sparse mask's, which a path would be compared with.
    swapped = measured(replace(FA3, name="dense", dense=False))
    assert "relative error" in swapped.wrong["dense"]


@pytest.mark.parametrize("check", [False, True])
def test_outputs_that_are_not_finite_are_wrong(check):
    out = torch.zeros(4, 520, 64)
    out[2, 3, 4] = float("nan")
    result = measured(FA3, returning(out), check=check)
    assert result.wrong == {"wrong": "an output is not finite"}
    assert [timing.contender.name for timing in result.timings] == ["fa3"]


def test_outputs_far_from_the_truth_are_wrong():
    result = measured(FA3, returning(torch.zeros(4, 520, 64)))
    assert result.wrong == {"wrong": "relative error 1, above 0.02"}
    assert not measured(returning(torch.zeros(4, 520, 64)), check=False).wrong


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ImportError("No module named 'x'"), "ImportError: No module named 'x'"),
        (UsageError("it is refused; do this"), "it is refused; do this"),
        (RuntimeError("\nCUDA error: out\nmore\n"), "RuntimeError: CUDA error: out"),
        (ValueError(), "ValueError"),
    ],
)
def test_who_cannot_run_is_absent_with_a_reason(error, reason):
    result = measured(raising(error), path("reference"))
    assert result.absent == {"broken": reason}
    assert [timing.contender.name for timing in result.timings] == ["reference"]
    assert result.baseline is None


def test_only_aligned_cases_have_contenders_for_them():
    picky = replace(FA3, name="picky", aligned=True)
    assert [t.contender.name for t in measured(FA3, picky, check=False).timings] == ["fa3"]
    aligned = Case(640, 64, 128, 0.3, aligned=True)
    options = CaseOptions(heads=4, kv_heads=2)
    result = measure_case(problem_of(aligned, options), [FA3, picky], clock(), ONCE, check=False)
    assert [timing.contender.name for timing in result.timings] == ["fa3", "picky"]


def test_metadata_is_timed_in_all_and_on_the_device():
    layout = MaskLayout(layers=2, heads=4, mask_heads=4, page_size=32)
    times = metadata_times(CPU, clock(gpu=0.5), ONCE, CASE, layout)
    assert (times.documents, times.wall_ms, times.gpu_ms) == (4, 1.0, 0.5)
