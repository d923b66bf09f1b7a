"""Scores on disk: what a stopped evaluation finds again, and what it must not mix."""

import json
from dataclasses import replace

import pytest

from sift_index.errors import UsageError
from sift_index.evaluation.ledger import Ledger, Scored
from sift_index.evaluation.metrics import PromptScore
from sift_index.evaluation.questions import Question

SCORE = PromptScore(0.1, 0.9, 2.0, 0.5, 1.0, 0.3, f1=0.25, ca_recall=0.5)
ONE = Scored("1", "mills", "made", 300, {"dense": SCORE, "sift": replace(SCORE, kl=0.2)}, 2, 1)
TWO = replace(ONE, id="2", source="frühe Mühlen")
QUESTION = Question("1", "Which?", ("one",), (), "made", "mills")
METHODS = {"dense": None, "sift": None}


def written(path, *scored: Scored, setting: str = "tiny") -> None:
    ledger = Ledger.open(path, setting)
    for one in scored:
        ledger.add(one)


def test_scores_come_back_as_they_were(tmp_path):
    path = tmp_path / "new" / "scores.jsonl"
    written(path, ONE, TWO)
    again = Ledger.open(path, "tiny")
    assert again.get(QUESTION, METHODS) == ONE
    assert again.get(replace(QUESTION, id="2"), METHODS) == TWO


def test_only_the_same_question_with_every_method_counts(tmp_path):
    written(tmp_path / "s", ONE)
    ledger = Ledger.open(tmp_path / "s", "tiny")
    assert ledger.get(QUESTION, {"sift": None}) == ONE
    assert ledger.get(QUESTION, {**METHODS, "paper": None}) is None
    assert ledger.get(replace(QUESTION, dataset="other"), METHODS) is None
    assert ledger.get(replace(QUESTION, id="3"), METHODS) is None


def test_a_line_cut_short_by_a_kill_is_run_again(tmp_path):
    path = tmp_path / "s"
    written(path, ONE, TWO)
    whole = path.read_bytes()
    for cut in (1, 40, len(whole) // 2 - 10):
        path.write_bytes(whole[:-cut])
        ledger = Ledger.open(path, "tiny")
        assert ledger.get(QUESTION, METHODS) == ONE
        assert ledger.get(replace(QUESTION, id="2"), METHODS) is None
        ledger.add(TWO)
        assert path.read_bytes() == whole


def test_files_of_several_runs_can_be_joined(tmp_path):
    for name, one in (("a", ONE), ("b", TWO)):
        written(tmp_path / name, one)
    joined = tmp_path / "joined"
    joined.write_bytes((tmp_path / "a").read_bytes() + (tmp_path / "b").read_bytes())
    ledger = Ledger.open(joined, "tiny")
    assert all(ledger.get(replace(QUESTION, id=i), METHODS) for i in "12")


def test_scores_of_another_setting_are_refused(tmp_path):
    written(tmp_path / "s", ONE)
    with pytest.raises(UsageError, match="s line 1: expected scores of small, found those of tiny"):
        Ledger.open(tmp_path / "s", "small")


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
        Ledger.open(tmp_path / "s", "tiny")


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be used"):
        Ledger.open(tmp_path, "tiny")


def test_without_a_file_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ledger = Ledger()
    ledger.add(ONE)
    assert ledger.get(QUESTION, METHODS) == ONE
    assert not list(tmp_path.iterdir())
