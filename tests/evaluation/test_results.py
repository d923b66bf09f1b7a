"""The command a result row carries repeats the run and names no place on this machine."""

import sys

import pytest
import torch

from sift_index.evaluation.results import result_rows


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["/x/y/sift-index", "eval", "/data/sets/qa.jsonl"], "sift-index eval qa.jsonl"),
        (["-c", "eval", "a/b.yaml"], "sift-index eval a/b.yaml"),
        (["sift-index", "--methods", "policy:/t/p.yaml@2,policy:b/q.yaml,dense"],
         "sift-index --methods policy:p.yaml@2,policy:b/q.yaml,dense"),
        (["sift-index", "--results=/t/r.json"], "sift-index --results=r.json"),
    ],
)  # fmt: skip
def test_the_command_of_a_row(monkeypatch, given, shown):
    monkeypatch.setattr(sys, "argv", given)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None, raising=False)
    (row,) = result_rows([("case", "kl", 0.1, "nats")], torch.device("cpu"))
    assert row.command == shown
