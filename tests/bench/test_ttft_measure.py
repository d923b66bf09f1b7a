"""One case: turns, splits, energy, and the rows that come of them."""

from dataclasses import replace

import pytest
import torch

from sift_index.bench.ttft_cases import DRAM, FA3, KV_REUSE, SDPA, SIFT, Row
from sift_index.bench.ttft_laps import ATTENTION, LOAD, UPLOAD, WAIT, HostLaps
from sift_index.bench.ttft_measure import PrefillTiming, TTFTResult, measure_prefills
from sift_index.bench.ttft_report import (
    SHOWN,
    all_values,
    columns,
    own_values,
    progress_line,
    table_lines,
    ttft_rows,
)
from sift_index.bench.ttft_stage import Contender
from tests.bench.ttft_problems import CASE, ONCE, instruments, stage_of

CPU = torch.device("cpu")
ROWS = (Row(FA3), Row(SDPA), Row(SIFT), Row(SIFT, 0.1), Row(KV_REUSE, store=DRAM))


class Script:
    """A stage whose rows do as they are told."""

    def __init__(self, prefill=None, laps=()):
        self.case = CASE
        self.order: list[str] = []
        self._prefill, self._laps = prefill, laps

    def contender(self, row):
        def run(laps):
            self.order.append(row.name)
            for name in self._laps:
                with laps.lap(name):
                    pass
            return torch.zeros(1, 1, 4) if self._prefill is None else self._prefill(row)

        return Contender(row, run)


class FixedLaps(HostLaps):
    """Parts of made-up lengths."""

    LENGTHS = {UPLOAD: 1.0, ATTENTION: 4.0, LOAD: 8.0, WAIT: 2.0}

    def totals(self):
        return {name: self.LENGTHS[name] for name in super().totals()}


def test_a_case_as_it_runs():
    with stage_of() as stage:
        result = measure_prefills(stage, ROWS, instruments(ms=1e6), ONCE)
    assert result.absent == {FA3: "the device is cpu, not CUDA"} and not result.wrong
    found = {timing.row.name: timing for timing in result.timings}
    assert list(found) == ["dense-sdpa", "default", "ca10", "kv-reuse-dram"]
    parts = [set(timing.parts) for timing in found.values()]
    sift = {UPLOAD, ATTENTION, "rest"}
    assert parts == [{ATTENTION, "rest"}, sift, sift, {LOAD, WAIT, ATTENTION, "rest"}]
    assert list(result.dense) == [SDPA]


@pytest.mark.parametrize(
    ("laps", "rest"),
    [((ATTENTION,), 6.0), ((UPLOAD, ATTENTION), 5.0), ((LOAD, WAIT, ATTENTION), 4.0)],
)
def test_the_rest_is_what_no_lap_holds_and_loading_runs_beside(laps, rest):
    tools = replace(instruments(ms=10.0), laps=FixedLaps)
    [timing] = measure_prefills(Script(laps=laps), [Row(SDPA)], tools, ONCE).timings
    assert timing.parts["rest"] == rest and timing.ms == 10.0


def test_rows_take_turns():
    script, effort = Script(), replace(ONCE, warmup=2, repeats=3)
    measure_prefills(script, [Row(SDPA), Row(SIFT)], instruments(), effort)
    warm = 2 * ["dense-sdpa"] + 2 * ["default"]
    assert script.order == warm + 3 * ["dense-sdpa", "default"]


def test_where_energy_is_counted_a_turn_fills_its_window():
    script, effort = Script(), replace(ONCE, repeats=2, window=0.035)
    result = measure_prefills(script, [Row(SDPA)], instruments(ms=10.0, joules=8.0), effort)
    assert len(script.order) == 1 + 2 * 4  # four of 10 ms are the first to fill 35 ms
    assert result.timings[0].joules == 2.0


def test_medians_are_of_all_prefills():
    times = iter((0.0, 5.0, 9.0, 6.0))
    tools = instruments()
    clock = replace(tools.clock, wall=lambda run, head_start_ms=0.0: (run(), next(times))[1])
    next(times)
    effort = replace(ONCE, repeats=3)
    [timing] = measure_prefills(Script(), [Row(SDPA)], replace(tools, clock=clock), effort).timings
    assert timing.ms == 6.0 and timing.joules is None


def test_logits_that_are_none_are_wrong():
    script = Script(lambda row: torch.full((1, 1, 4), float("nan")))
    result = measure_prefills(script, [Row(SDPA)], instruments(), ONCE)
    assert result.wrong == {"dense-sdpa": "its logits are not finite"} and not result.timings


def test_who_fails_in_its_first_run_is_absent():
    def full(row):
        raise torch.OutOfMemoryError("CUDA out of memory")

    result = measure_prefills(Script(full), [Row(SDPA)], instruments(), ONCE)
    assert result.absent == {"dense-sdpa": "OutOfMemoryError: CUDA out of memory"}


# --- rows and table ----------------------------------------------------------------------------

DENSE = PrefillTiming(Row(FA3), 2000.0, {ATTENTION: 1500.0, "rest": 500.0}, joules=1000.0)
OURS = PrefillTiming(
    Row(SIFT, 0.1),
    1000.0,
    {UPLOAD: 1.0, ATTENTION: 499.0, "rest": 500.0},
    400.0,
    {"compose_ms": 1.5, "ca_density": 0.1, "metadata_bytes": 4096.0},
)
RESULT = TTFTResult(CASE, (DENSE, OURS))


def test_rows_have_fixed_names_and_say_what_they_compare_with():
    rows = {(row.case, row.metric): row for row in ttft_rows(RESULT, CPU)}
    ours = {metric: row for (case, metric), row in rows.items() if case == "600-ca10-doc130"}
    assert {metric: row.value for metric, row in ours.items()} == {
        "ttft_ms": 1000.0,
        "upload_decode_ms": 1.0,
        "attention_ms": 499.0,
        "rest_ms": 500.0,
        "compose_ms": 1.5,
        "ca_density": 0.1,
        "metadata_bytes": 4096.0,
        "energy_j": 400.0,
        "edp": 400.0,
        "ed2p": 400.0,
        "speedup_vs_fa3": 2.0,
        "edp_vs_dense": 5.0,
    }
    assert ours["speedup_vs_fa3"].baseline == "dense FA3, same run"
    assert (ours["edp"].unit, ours["metadata_bytes"].unit) == ("J s", "bytes")
    dense = {metric: row.value for (case, metric), row in rows.items() if "fa3-doc" in case}
    assert dense["edp"] == 2000.0 and dense["ed2p"] == 4000.0
    assert not any(metric.startswith(("speedup", "edp_vs")) for metric in dense)


def test_each_dense_row_is_compared_with():
    other = replace(DENSE, row=Row(SDPA), ms=3000.0)
    values = all_values(TTFTResult(CASE, (other, DENSE, OURS)), OURS)
    assert (values["speedup_vs_fa3"], values["speedup_vs_sdpa"]) == (2.0, 3.0)
    assert values["edp_vs_dense"] == 5.0  # FA3 comes first, whatever the order of the rows


def test_without_energy_there_is_none_of_it():
    quiet = replace(OURS, joules=None)
    values = all_values(TTFTResult(CASE, (DENSE, quiet)), quiet)
    assert not {"energy_j", "edp", "ed2p", "edp_vs_dense"} & set(values)
    assert "speedup_vs_fa3" not in all_values(TTFTResult(CASE, (quiet,)), quiet)


def test_the_table_has_the_columns_that_were_measured():
    metrics = columns([RESULT])
    assert "wait_ms" not in metrics and metrics[0] == "ttft_ms"
    dense, ours = table_lines([RESULT], metrics)
    assert ours[:2] == ["600-ca10-doc130", "1,000.0"] and dense[0] == "600-dense-fa3-doc130"
    assert ours[1 + metrics.index("speedup_vs_fa3")] == "2.00"
    assert dense[1 + metrics.index("speedup_vs_fa3")] == ""
    assert set(metrics) <= set(SHOWN) and "ed2p" in own_values(OURS)


def test_progress_is_one_line():
    assert progress_line(RESULT) == ("600-doc130: dense-fa3 2,000.0 ms, ca10 1,000.0 ms (2.00x)")
    assert progress_line(TTFTResult(CASE, ())).endswith("nothing could run")
