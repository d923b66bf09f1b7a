"""Studies of mask rules: what their methods are compared with, and runs that go on."""

import json
import math
import sys

import pytest

from benchmarks import study, study_union
from benchmarks.study import AT_EQUAL_CA, AT_EQUAL_KL, Study, ratio, ratios
from sift_index.errors import UsageError
from sift_index.evaluation.methods.masks import OnTheSpot
from sift_index.evaluation.methods.treatment import Dense
from tests.evaluation.spoken import MODEL, TEXTS
from tests.plans import loaded, tiny

DENSITIES = {"a@1": 0.8, "a@2": 0.4, "a@3": 0.2}
KL = {"a@1": 0.01, "a@2": 0.02, "a@3": 0.08}


def prompt(times: float, **others: tuple[float, float]) -> dict[str, dict[str, float]]:
    """Return the scores of a prompt: KLs of the curve are `times` those above."""
    found = {n: {"ca_density": DENSITIES[n], "la_density": DENSITIES[n]} for n in KL}
    for name, value in KL.items():
        found[name]["kl"] = times * value
    for name, (density, kl) in others.items():
        found[name] = {"ca_density": density, "la_density": density, "kl": kl}
    return found


def test_kl_is_compared_where_the_density_is_the_same():
    scores = [prompt(times, b=(0.3, times * 0.08)) for times in (1, 3)]
    found = ratio(scores, "b", [*KL], AT_EQUAL_CA)
    # The curve at 0.3 lies halfway between 0.02 and 0.08 on a logarithmic scale, in every resample.
    assert found is not None
    assert (found.mean, found.low, found.high) == pytest.approx((2, 2, 2))


def test_density_is_compared_where_the_kl_is_the_same():
    scores = [prompt(times, b=(0.2, times * math.sqrt(0.01 * 0.02))) for times in (1, 3)]
    found = ratio(scores, "b", [*KL], AT_EQUAL_KL)
    assert found is not None
    assert found.mean == pytest.approx(0.2 / math.sqrt(0.8 * 0.4))


def test_the_interval_is_that_of_resampled_prompts():
    scores = [prompt(1, b=(0.4, kl)) for kl in (0.02, 0.06)]
    found = ratio(scores, "b", [*KL], AT_EQUAL_CA)
    assert found is not None
    assert (found.mean, found.low, found.high) == pytest.approx((2, 1, 3))


def test_nothing_is_compared_beyond_the_curve_nor_the_curve_with_itself():
    beyond = {"b@1": (0.81, 0.01), "b@2": (0.19, 0.01), "b@3": (0.5, 0.01)}
    scores = [prompt(1, **beyond)]
    methods = dict.fromkeys([*KL, *beyond], lambda prompt: Dense())
    rows = list(ratios("case", Study("s", methods, "a", AT_EQUAL_CA), scores))
    assert [row[:2] for row in rows] == [
        ("case/b@3", "kl_ratio"),
        ("case/b@3", "kl_ratio_lo"),
        ("case/b@3", "kl_ratio_hi"),
    ]


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Run the union study on three questions about small documents, with what else is said."""
    file = tmp_path / "mills.jsonl"
    documents = [{"text": text} for text in TEXTS]
    lines = [
        json.dumps({"id": str(n), "question": q, "answers": ["ab"], "documents": documents})
        for n, q in enumerate(("Which?", "Why?", "Where is it?"))
    ]
    file.write_text("\n".join(lines))
    monkeypatch.setattr(study, "load_model", lambda *names: MODEL)

    def run(*more: str):
        results = tmp_path / "studies.json"
        given = ["--questions", file, "--results", results, "--scores", tmp_path / "s.jsonl"]
        monkeypatch.setattr(sys, "argv", ["study", *map(str, given), *more])
        study.main(study_union.study, "about")
        rows = json.loads(results.read_text())["rows"]
        return {(row["case"], row["metric"]): row["value"] for row in rows}

    return run


def test_a_study_goes_on_where_it_was_and_records_all_prompts(command, tmp_path, monkeypatch):
    some = ("--methods", "probe@0.003,own x 1@0.003")
    first = command("--prompts", "2", *some)
    kept = (tmp_path / "s.jsonl").read_text().splitlines()
    assert len(kept) == 2

    made: list[int] = []
    compose = OnTheSpot.compose

    def counted(*given):
        made.append(1)
        return compose(*given)

    monkeypatch.setattr(OnTheSpot, "compose", counted)
    second = command(*some)
    assert len(made) == 2  # two methods on the third prompt
    assert (tmp_path / "s.jsonl").read_text().splitlines()[:2] == kept
    case = "union/tiny/mills/own x 1@0.003"
    assert (first[case, "prompts"], second[case, "prompts"]) == (2, 3)
    scores = [json.loads(line)["scores"]["own x 1@0.003"]["kl"] for line in kept]
    assert first[case, "kl"] == pytest.approx(sum(scores) / 2)
    assert {"kl_lo", "kl_hi", "ca_density", "la_density", "density", "top1"} <= {
        metric for name, metric in first if name == case
    }


def test_scores_of_another_model_and_unknown_methods_are_refused(command, monkeypatch):
    with pytest.raises(UsageError, match=r"own x 2@0\.006.*found probe@7"):
        command("--methods", "probe@7")
    command("--prompts", "1", "--methods", "probe@0.003")
    monkeypatch.setattr(study, "load_model", lambda *names: loaded(tiny("llama", seed=1)))
    with pytest.raises(UsageError, match="another setting"):
        command("--prompts", "1", "--methods", "probe@0.003")
