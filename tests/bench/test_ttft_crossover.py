"""The crossover table: where the ratio of dense to sparse crosses 1, by prompt length."""

from dataclasses import replace

import pytest
import yaml

from sift_index.bench.clock import Clock
from sift_index.bench.ttft_cases import FA3, SDPA, SIFT, Row, TTFTOptions
from sift_index.bench.ttft_crossover import (
    Point,
    crossing,
    crossover_case,
    measure_crossover,
    points_of,
    write_crossover,
)
from sift_index.bench.ttft_measure import PrefillTiming, TTFTResult
from sift_index.bench.ttft_session import TTFTRun
from sift_index.errors import UsageError
from sift_index.runtime.crossover import CrossoverRow
from tests.bench.ttft_problems import CASE, ONCE, instruments, model


@pytest.mark.parametrize(
    ("points", "found"),
    [
        ([(0.2, 1.4), (0.6, 0.6)], 0.4),
        ([(0.6, 0.9), (0.2, 1.1), (0.4, 1.05)], 0.4 + 0.2 / 3),
        ([(0.2, 0.99), (0.6, 0.6)], 0.0),
        ([(0.2, 1.4), (0.6, 1.01)], 0.6),
        ([(0.2, 1.0), (0.6, 0.5)], 0.0),
        ([], 0.0),
    ],
    ids=["between", "among three", "never", "always", "no faster", "nothing"],
)
def test_where_sparse_stops_paying(points, found):
    assert crossing([Point(*point) for point in points]) == pytest.approx(found)


def test_a_point_is_total_density_and_dense_time_over_sparse():
    dense = PrefillTiming(Row(SDPA), 30.0, {})
    sparse = PrefillTiming(Row(SIFT, 0.1), 20.0, {}, numbers={"density": 0.25, "ca_density": 0.1})
    assert points_of(TTFTResult(CASE, (dense, sparse))) == [Point(0.25, 1.5)]
    with pytest.raises(UsageError, match="expected a dense and a sparse row"):
        points_of(TTFTResult(CASE, (sparse,), absent={"dense-fa3": "not installed"}))


def test_short_prompts_have_short_documents():
    sizes = [crossover_case(tokens).document for tokens in (512, 1024, 4096, 8192, 65536)]
    assert sizes == [128, 128, 512, 1024, 1024]


def run_of(**changes) -> TTFTRun:
    options = TTFTOptions(
        tokens=(600, 512), documents=(128,), densities=(0.05, 0.45), kinds=(FA3, SDPA, SIFT)
    )
    return replace(TTFTRun(options, ONCE, compile=False), **changes)


def slower_when_denser() -> Clock:
    """Dense takes 10 ms; sparse 5 ms, and 15 ms once it is denser. Rows come in that order."""
    times = iter([10.0, 5.0, 15.0] * 2)

    def wall(run, head_start_ms: float = 0.0) -> float:
        run()
        return next(times)

    return Clock(wall, wall, instruments().clock.now)


def test_lengths_are_measured_one_after_the_other():
    said: list[str] = []
    tools = replace(instruments(), clock=slower_when_denser())
    rows = list(measure_crossover(run_of(), model(), tools, said.append))
    assert [row.tokens for row in rows] == [512, 600]
    assert said[0] == "512-doc128: dense-sdpa 10.0 ms, ca5 5.0 ms (2.00x), ca45 15.0 ms (0.67x)"
    assert said.count("dense-fa3: not timed: the device is cpu, not CUDA") == 1
    assert all(0.3 < row.max_density < 1 for row in rows)


def test_a_budget_ends_it_between_lengths():
    said: list[str] = []
    tools = instruments(seconds=1.0)
    rows = list(measure_crossover(run_of(budget=1.5), model(), tools, said.append))
    assert [row.tokens for row in rows] == [512]
    assert rows[0].max_density == 0.0  # both take 10 ms: no faster
    assert said[-1] == "600 tokens: left out: the budget of 1.5 s is spent"


def test_the_file_has_the_schema_that_is_read(tmp_path):
    path = tmp_path / "h200.yaml"
    rows = [CrossoverRow(1024, 0.0), CrossoverRow(4096, 0.35)]
    write_crossover(path, "NVIDIA H200", "llama-3.1-8b", rows)
    assert yaml.safe_load(path.read_text()) == {
        "device": "NVIDIA H200",
        "model_shape": "llama-3.1-8b",
        "rows": [
            {"tokens": 1024, "max_density": 0.0},
            {"tokens": 4096, "max_density": 0.35},
        ],
    }
