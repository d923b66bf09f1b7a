"""Rates of builds on several workers count only while all of them work."""

import json

import pytest

from benchmarks.workers import LENGTHS, Commit, steady_rate, values, write_corpus
from sift_index.errors import UsageError


def test_a_rate_is_that_of_the_time_in_which_all_work():
    late = [Commit("b", 100, 5.0), Commit("b", 100, 6.0), Commit("b", 100, 7.0)]
    early = [Commit("a", 100, t) for t in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)]
    # Between the first unit of b, at 5, and the last one of a, at 6.
    assert steady_rate([*early, *late], 2) == 200.0
    assert steady_rate(early, 1) == 100.0


@pytest.mark.parametrize(
    "workers, commits", [(2, [Commit("a", 1, 1.0)]), (1, [Commit("a", 1, 1.0)])]
)
def test_too_little_work_has_no_rate(workers, commits):
    with pytest.raises(UsageError, match="--tokens"):
        steady_rate(commits, workers)


def test_packs_that_differ_are_counted_once():
    packs = {1: {"x": "1", "y": "2"}, 2: {"x": "1", "y": "3"}}
    found = {(case, metric): n for case, metric, n, _ in values({1: 10.0, 2: 19.0}, packs, "shape")}
    assert found["shape/workers-2", "packs_differing"] == 1
    assert found["shape/workers-2", "times_one_worker"] == 1.9
    assert found["shape/workers-1", "packs_differing"] == 0


def test_a_corpus_has_the_tokens_asked_for(tmp_path):
    write_corpus(tmp_path / "corpus.jsonl", 20_000)
    texts = [json.loads(line)["text"] for line in (tmp_path / "corpus.jsonl").open()]
    assert 20_000 <= sum(map(len, texts)) <= 20_000 + LENGTHS[1]
