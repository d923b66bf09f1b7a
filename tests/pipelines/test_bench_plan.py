"""`sift-index bench plan` at sizes that fit a test, and the inputs it plans."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from sift_index.cli.main import cli
from sift_index.errors import SiftError
from sift_index.pipelines.bench.plan import PlanResult, size_name
from sift_index.pipelines.bench.plan_child import plan_lengths
from sift_index.pipelines.bench.plan_driver import Rounds
from sift_index.pipelines.bench.plan_inputs import scanned_batches, write_texts
from sift_index.pipelines.cataloguing import catalogue_of
from sift_index.pipelines.corpus import open_corpus
from sift_index.pipelines.planner import cut_units

DIGEST = "0" * 32


def test_batches_hold_the_documents_that_were_asked_for():
    found = catalogue_of(scanned_batches(10_000, seed=3))
    assert found.read == len(found) == 10_000
    assert found.ids[0].as_py() == "doc-000000000" and found.ids[-1].as_py() == "doc-000009999"
    assert (int(found.tokens.min()), int(found.tokens.max())) == (20, 400)
    # One of a hundred has the text of another.
    assert len(found.distinct) == 10_000 - 40 - 40 - 18
    place = found.places.at(np.array([9_999]))[0]
    assert (place.file, place.position) == ("part-00000.jsonl", 9_999 * 900)


def test_a_batch_may_lie_in_two_files(monkeypatch):
    monkeypatch.setattr("sift_index.pipelines.bench.plan_inputs.FILE_DOCUMENTS", 3_000)
    found = catalogue_of(scanned_batches(7_000, seed=0))
    places = found.places.at(np.array([2_999, 3_000, 6_999]))
    assert [place.file for place in places] == [f"part-{n:05}.jsonl" for n in (0, 1, 2)]
    assert [place.position for place in places] == [2_999 * 900, 0, 999 * 900]


def test_texts_are_documents_of_a_corpus(tmp_path):
    write_texts(tmp_path / "texts.jsonl", 50, seed=1)
    reader = open_corpus(tmp_path / "texts.jsonl")
    read = [reader.read(location) for location in reader.locations()]
    assert len({document.id for document in read}) == 50
    assert all(11 <= len(document.text.split()) <= 224 for document in read)


def test_rounds_repeat_a_plan_under_other_names():
    plan = cut_units(catalogue_of(scanned_batches(100, seed=1)), 3_000, DIGEST)
    units = list(Rounds(plan, 3))
    assert len(units) == 3 * len(plan) == len(Rounds(plan, 3))
    assert len({unit.id for unit in units}) == len(units)
    assert sum(unit.tokens for unit in units) == Rounds(plan, 3).tokens == 3 * plan.tokens


def test_the_plan_that_is_timed_is_whole():
    found = plan_lengths(5_000, unit_tokens=10_000, seed=0)
    plan = cut_units(catalogue_of(scanned_batches(5_000, seed=0)), 10_000, DIGEST)
    assert (found["units"], found["keys"], found["tokens"]) == (len(plan), plan.keys, plan.tokens)
    assert found["seconds"] > found["hand_out_s"] > 0


def test_sizes_have_short_names():
    assert [size_name(n) for n in (10_000_000, 1_000, 1_500, 7)] == ["10m", "1k", "1500", "7"]


def test_the_extrapolation_is_from_what_was_measured():
    found = {"scan_s": 36.0, "tokens": 7_200.0, "peak_bytes": 1 << 30, "seconds": 40.0}
    found["tokens_per_cpu_second"] = 100.0
    values = {m: v for _, m, v, _ in PlanResult("tokenise/1k", 1_000, found, "").values()}
    assert values["core_hours_at_100m"] == pytest.approx(2_000)
    assert values["tokens_per_second"] == 200
    assert values["peak_gib"] == 1.0


@pytest.fixture(scope="module")
def cases(tmp_path_factory, tiny_model_dir):
    """What one small run of everything put into a results file."""
    folder = tmp_path_factory.mktemp("plan")
    results = folder / "plan.json"
    arguments = ["bench", "plan", "--texts", "300", "--lengths", "2000", "--published", "2000"]
    arguments += ["--workers", "3", "--driver-unit-tokens", "20000", "--driver-rounds", "2"]
    arguments += ["--model", str(tiny_model_dir), "--folder", str(folder)]
    done = CliRunner().invoke(cli, [*arguments, "--results", str(results), "--output", "json"])
    assert done.exit_code == 0, done.output
    assert [path.name for path in folder.iterdir()] == ["plan.json"]  # inputs were removed
    rows = json.loads(results.read_text())["rows"]
    shown = json.loads(done.stdout)["cases"]
    assert {row["case"] for row in rows} == set(shown)
    return shown


def test_every_kind_is_measured(cases):
    assert set(cases) == {"tokenise/300", "plan/2k", "publish/2k", "driver/3"}
    assert all(case["peak_gib"] > 0 and case["seconds"] > 0 for case in cases.values())
    assert cases["tokenise/300"]["tokens"] > 300 * 20
    assert cases["publish/2k"]["keys"] == 2_000


def test_the_driver_finishes_all_units_of_all_workers(cases):
    driver = cases["driver/3"]
    assert driver["units"] >= 2 * 3 and driver["keys"] >= driver["documents"]
    # Three workers at 50,000 tokens/s cannot do more.
    assert 0 < driver["simulated_tokens_per_second"] <= 3 * 50_000
    assert 0 < driver["driver_cpu_share"] < 2


def test_a_measurement_that_fails_says_why(tmp_path):
    from sift_index.pipelines.bench.plan import _measured

    with pytest.raises(SiftError, match="measuring publish, found that it ended: .*No such file"):
        _measured("publish", root=str(tmp_path / "nowhere"), tokens=1)


@pytest.mark.parametrize("option", ["--texts", "--lengths", "--published", "--workers"])
@pytest.mark.parametrize("value", ["0", "a", "-3"])
def test_wrong_counts_are_refused_before_work(option, value):
    done = CliRunner().invoke(cli, ["bench", "plan", option, value])
    assert done.exit_code == 2 and f"{option}: expected numbers" in done.stderr
