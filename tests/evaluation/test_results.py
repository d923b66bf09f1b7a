"""The command a result row carries repeats the run and names no place on this machine."""

import sys
from pathlib import Path

import pytest
import torch

from sift_index.errors import UsageError
from sift_index.evaluation.results import data_label, merge_results, read_results, result_rows


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["/x/y/sift-index", "eval", "/data/sets/qa.jsonl"], "sift-index eval qa.jsonl"),
        (["-c", "eval", "a/b.yaml"], "sift-index eval a/b.yaml"),
        (["sift-index", "--methods", "policy:/t/p.yaml@2,policy:b/q.yaml,dense"],
         "sift-index --methods policy:p.yaml@2,policy:b/q.yaml,dense"),
        (["sift-index", "--results=/t/r.json"], "sift-index --results=r.json"),
        (["sift-index", "--serve-prefix", "Be short."], "sift-index --serve-prefix 'Be short.'"),
        (["sift-index"], "sift-index"),
    ],
)  # fmt: skip
def test_the_command_of_a_row(monkeypatch, given, shown):
    monkeypatch.setattr(sys, "argv", given)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None, raising=False)
    (row,) = result_rows([("case", "kl", 0.1, "nats")], torch.device("cpu"))
    assert row.command == shown


def test_data_sets_taken_together_have_one_name_in_any_order():
    assert data_label(["musique", "examples", "musique"]) == "examples+musique"
    assert data_label(iter(["musique"])) == "musique"


def test_a_disk_that_is_full_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "quality.json"
    rows = result_rows([("case", "kl", 0.1, "nats")], torch.device("cpu"))
    merge_results(path, "quality", rows)
    before = path.read_bytes()

    def full(self, *_: object, **__: object) -> None:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UsageError, match="cannot be written"):
        merge_results(path, "quality", rows)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["quality.json"]


def test_rows_without_texts_as_names_are_refused(tmp_path):
    (tmp_path / "r.json").write_text('{"rows": [{"case": 1, "metric": "a"}]}')
    with pytest.raises(UsageError, match="is no results file"):
        read_results(tmp_path / "r.json")
