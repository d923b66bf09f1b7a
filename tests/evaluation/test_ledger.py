"""Scores on disk: what a stopped evaluation finds again, and what it must not mix."""

import json
from dataclasses import replace

import pytest

from sift_index.errors import UsageError
from sift_index.evaluation.ledger import Ledger, Scored
from sift_index.evaluation.metrics import PromptScore

SCORE = PromptScore(0.1, 0.9, 2.0, 0.5, 1.0, 0.3, f1=0.25, ca_recall=0.5)
ONE = Scored(
    id="1",
    dataset="mills",
    source="made",
    prompt="c0ffee",
    tokens=300,
    scores={"dense": SCORE, "sift": replace(SCORE, kl=0.2)},
    policies={"sift": "0a"},
    hits=2,
    misses=1,
)
TWO = replace(ONE, id="2", source="frühe Mühlen")
METHODS = ("dense", "sift")
POLICIES = {"sift": "0a", "paper": "0b"}


def opened(path, setting: str = "tiny", **changes) -> Ledger:
    return Ledger.open(path, setting, {**POLICIES, **changes})


def found(ledger: Ledger, name: str = "1", methods=METHODS, **changes) -> Scored | None:
    place = {"dataset": "mills", "prompt": "c0ffee", **changes}
    return ledger.get(place["dataset"], name, place["prompt"], methods)


def written(path, *scored: Scored, setting: str = "tiny") -> None:
    ledger = opened(path, setting)
    for one in scored:
        ledger.add(one)


def test_scores_come_back_as_they_were(tmp_path):
    path = tmp_path / "new" / "scores.jsonl"
    written(path, ONE, TWO)
    again = opened(path)
    assert found(again) == ONE
    assert found(again, "2") == TWO


def test_only_the_same_question_with_every_method_counts(tmp_path):
    written(tmp_path / "s", ONE)
    ledger = opened(tmp_path / "s")
    assert found(ledger, methods=["sift"]) == ONE
    assert found(ledger, methods=[*METHODS, "paper"]) is None
    assert found(ledger, dataset="other") is None
    assert found(ledger, "3") is None
    assert found(ledger, prompt="decaf") is None  # the question's text changed


def test_scores_under_another_policy_of_the_name_do_not_count(tmp_path):
    written(tmp_path / "s", ONE)
    ledger = opened(tmp_path / "s", sift="0c")
    assert found(ledger) is None
    assert found(ledger, methods=["dense"]) == ONE
    ledger.add(replace(ONE, policies={"sift": "0c"}))
    assert found(opened(tmp_path / "s", sift="0c")) is not None


@pytest.mark.parametrize("content", [b'{"precious": [1]}', b"one line of text", b"a\nb", b"\n{"])
def test_a_foreign_file_is_refused_and_stays_as_it_is(tmp_path, content):
    (tmp_path / "s").write_bytes(content)
    with pytest.raises(UsageError, match="expected scores of an evaluation"):
        opened(tmp_path / "s")
    assert (tmp_path / "s").read_bytes() == content


def test_opening_changes_nothing(tmp_path):
    written(tmp_path / "s", ONE, TWO)
    cut = (tmp_path / "s").read_bytes()[:-9]
    (tmp_path / "s").write_bytes(cut)
    opened(tmp_path / "s")
    assert (tmp_path / "s").read_bytes() == cut
    Ledger.open(tmp_path / "new", "tiny", append=False)
    assert not (tmp_path / "new").exists()


def test_a_line_cut_short_by_a_kill_is_run_again(tmp_path):
    path = tmp_path / "s"
    written(path, ONE, TWO)
    whole = path.read_bytes()
    for cut in (1, 40, len(whole) // 2 - 10):
        path.write_bytes(whole[:-cut])
        ledger = opened(path)
        assert found(ledger) == ONE
        assert found(ledger, "2") is None
        ledger.add(TWO)
        assert path.read_bytes() == whole


def test_files_of_several_runs_can_be_joined(tmp_path):
    for name, one in (("a", ONE), ("b", TWO)):
        written(tmp_path / name, one)
    joined = tmp_path / "joined"
    joined.write_bytes((tmp_path / "a").read_bytes() + (tmp_path / "b").read_bytes())
    ledger = opened(joined)
    assert found(ledger, "1") and found(ledger, "2")


def test_scores_of_another_setting_are_refused(tmp_path):
    written(tmp_path / "s", ONE)
    with pytest.raises(UsageError, match="s line 1: expected scores of small, found those of tiny"):
        opened(tmp_path / "s", "small")


@pytest.mark.parametrize(
    "damage",
    [{"tokens": "abc"}, {"tokens": None}, {"hits": "x"}, {"dataset": ["q"]}, {"prompt": 1}],
)
def test_fields_of_another_type_are_refused_by_line(tmp_path, damage):
    written(tmp_path / "s", ONE)
    values = json.loads((tmp_path / "s").read_text())
    (tmp_path / "s").write_text(json.dumps({**values, **damage}) + "\n")
    with pytest.raises(UsageError, match="s line 1: expected scores of an evaluation"):
        opened(tmp_path / "s")


@pytest.mark.parametrize("value", ["x", None, float("nan"), True])
def test_scores_that_are_no_numbers_are_refused_by_line(tmp_path, value):
    written(tmp_path / "s", ONE)
    values = json.loads((tmp_path / "s").read_text())
    values["scores"]["sift"]["kl"] = value
    (tmp_path / "s").write_text(json.dumps(values) + "\n")
    with pytest.raises(UsageError, match="s line 1: expected scores of an evaluation"):
        opened(tmp_path / "s")


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[]",
        b"{}",
        json.dumps({"setting": "tiny", "scores": {"a": {"kl": 1}}}).encode(),
        json.dumps({"setting": "tiny", "scores": {}, "id": "1", "colour": "red"}).encode(),
        b"\xff\xfe",
    ],
)
def test_a_file_that_is_no_scores_file_is_refused_by_line(tmp_path, line):
    written(tmp_path / "s", ONE)
    with (tmp_path / "s").open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(UsageError, match="s line 2: expected scores of an evaluation, found"):
        opened(tmp_path / "s")


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be used"):
        opened(tmp_path)


def test_without_a_file_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ledger = Ledger(policies=POLICIES)
    ledger.add(ONE)
    assert found(ledger) == ONE
    assert not list(tmp_path.iterdir())
