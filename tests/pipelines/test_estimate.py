"""Dry runs: the plan and the size of the build that would follow, and nothing written."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from sift_index.cli.main import cli
from sift_index.errors import CorpusError, FingerprintMismatchError
from sift_index.pipelines.corpus import Location
from sift_index.pipelines.documents import Piece
from sift_index.pipelines.estimate import BuildEstimate, estimate_build, take_samples
from sift_index.pipelines.measurement import Sample, mean_sample
from sift_index.pipelines.planner import UnitPlan, cut_units
from sift_index.selection.policy import CORPUS, ProbePolicy
from tests.pipelines.builds import (
    POLICY,
    UNIT_TOKENS,
    InlineCrew,
    catalogue_of_pieces,
    many_documents,
    text,
    tiny_config,
)
from tests.pipelines.builds import write_corpus as write


@pytest.fixture(autouse=True)
def in_this_process(local_ray, monkeypatch):
    threads = torch.get_num_threads()
    monkeypatch.setattr("sift_index.pipelines.estimate.Crew", InlineCrew)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def estimate(tiny_model_dir, tmp_path):
    def _estimate(corpus: Path, index: Path | None = None, **changes) -> BuildEstimate:
        target = index or tmp_path / "nowhere"
        return estimate_build(tiny_config(corpus, target, tiny_model_dir, **changes))

    return _estimate


def plan(*lengths: int) -> UnitPlan:
    places = [Location(f"{n}.txt", 0) for n in range(len(lengths))]
    pieces = (Piece(bytes([n]) * 16, t, places[n], 0) for n, t in enumerate(lengths))
    return cut_units(catalogue_of_pieces(pieces), 300, "ab" * 16)


def test_samples_are_spread_along_the_plan():
    units = plan(*[100] * 40)
    numbers = [[piece.key[0] for piece in run] for run in take_samples(units, 200, count=4)]
    assert [len(run) for run in numbers] == [2, 2, 2, 2]
    # Parts of ten documents; each sample lies around the middle of its own.
    assert [run[0] for run in numbers] == [4, 14, 24, 34]


def test_a_small_plan_is_one_sample_and_an_empty_one_none():
    units = plan(10, 20, 30, 40)
    assert [[piece.tokens for piece in run] for run in take_samples(units, 25)] == [
        [10, 20, 30, 40]
    ]
    assert take_samples(plan(), 100) == []


def test_a_long_document_is_a_sample_by_itself():
    units = plan(*[100] * 20, 5000)
    assert [piece.tokens for piece in take_samples(units, 200, count=2)[-1]] == [5000]


def test_no_document_is_in_two_samples():
    units = plan(*range(900, 960, 10), 4000, 5000)
    runs = take_samples(units, 768)
    keys = [piece.key for run in runs for piece in run]
    assert len(runs) > 1 and len(keys) == len(set(keys))


def test_plan_and_size_are_those_of_the_build(estimate, inline, tmp_path):
    corpus, index = many_documents(tmp_path / "corpus"), tmp_path / "index"
    found = estimate(corpus)
    built = inline(corpus, index)
    assert (found.documents, found.keys) == (built.documents, built.new_keys)
    assert (found.tokens, found.units) == (built.new_tokens, built.units)
    assert found.index_bytes == pytest.approx(built.index_bytes, rel=0.1)
    assert 0 < found.measured_tokens < found.tokens
    assert 0 < found.device_hours * 3600 < found.seconds
    assert found.tokens / found.tokens_per_second == pytest.approx(
        found.device_hours * 3600, rel=1e-3
    )


def test_a_dry_run_writes_nothing(estimate, tmp_path):
    corpus = write(tmp_path / "corpus", {"a.txt": text(300, 1)})
    for policy in (POLICY, ProbePolicy(probe_rows=64, probe_tokens=64, probe_source=CORPUS)):
        estimate(corpus, policy=policy)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus"]


def test_what_an_index_holds_needs_no_work(estimate, inline, tmp_path):
    corpus, index = write(tmp_path / "corpus", {"a.txt": text(300, 1)}), tmp_path / "index"
    inline(corpus, index)
    done = estimate(corpus, index)
    assert (done.documents, done.keys, done.tokens, done.units) == (1, 0, 0, 0)
    said = "\n".join(done.lines())
    assert "nothing to compute" in said and "tokens/s" not in said
    write(corpus, {"b.txt": text(200, 2)})
    assert (estimate(corpus, index).keys, estimate(corpus, index).tokens) == (1, 202)


def test_a_build_that_would_be_refused_is_refused(estimate, inline, tmp_path):
    corpus, index = write(tmp_path / "corpus", {"a.txt": text(300, 1)}), tmp_path / "index"
    inline(corpus, index)
    with pytest.raises(FingerprintMismatchError):
        estimate(corpus, index, policy=ProbePolicy(probe_rows=32, probe_tokens=64))


def test_workers_measure_together():
    found = mean_sample([Sample(100, 1.0, 50), Sample(100, 3.0, 50)])
    assert found == Sample(100, 2.0, 50)


def test_the_command_prints_an_estimate(tmp_path, tiny_model_dir):
    corpus = write(tmp_path / "corpus", {"a.txt": text(300, 1)})
    target = str(tmp_path / "index")
    arguments = ["build", str(corpus), "--model", str(tiny_model_dir), "--index", target]
    arguments += ["--device", "cpu", "--threads", "1", "--dry-run"]
    shown = CliRunner().invoke(cli, arguments)
    assert shown.exit_code == 0, shown.output
    assert "1 keys to compute" in shown.output and "nothing was written" in shown.output
    values = CliRunner().invoke(cli, [*arguments, "--output", "json"])
    assert json.loads(values.stdout)["tokens"] == 302
    assert not (tmp_path / "index").exists()


def test_the_plan_says_what_changed_and_what_would_leave(estimate, inline, tmp_path):
    corpus = write(tmp_path / "corpus", {f"{n}.txt": text(200 + n, n) for n in range(5)})
    index = tmp_path / "index"
    first = estimate(corpus, index)
    assert (first.new, first.changed, first.unchanged, first.removed) == (5, 0, 0, 0)
    inline(corpus, index)
    write(corpus, {"1.txt": text(230, 99), "new.txt": text(240, 98)})
    (corpus / "2.txt").unlink()
    (corpus / "3.txt").rename(corpus / "moved.txt")
    for prune, said in ((False, "stay; --prune removes them"), (True, "leave the index")):
        found = estimate(corpus, index, prune=prune)
        assert (found.new, found.changed, found.unchanged, found.removed) == (2, 1, 2, 2)
        assert found.keys == 2 and f"2 documents that the corpus does not have {said}" in "\n".join(
            found.lines()
        )
    built = inline(corpus, index, prune=True)
    assert (built.new_keys, built.pruned_documents) == (2, 2)


def test_a_dry_run_refuses_a_prune_that_a_build_would_refuse(estimate, tmp_path):
    corpus = write(tmp_path / "corpus", {"a.txt": text(200, 1), "bad.txt": b"\xff"})
    with pytest.raises(CorpusError, match="--prune: expected a corpus that can be read"):
        estimate(corpus, prune=True)


def test_a_plan_of_very_many_units_is_warned_about(estimate, tmp_path, monkeypatch):
    corpus = many_documents(tmp_path / "corpus")
    found = estimate(corpus)
    assert "--unit-tokens" not in "\n".join(found.lines())
    monkeypatch.setattr("sift_index.pipelines.estimate.MANY_UNITS", 10)
    many = estimate(corpus)
    assert many.packs == many.units > 10 and many.advised_unit_tokens > UNIT_TOKENS
    assert f"use --unit-tokens {many.advised_unit_tokens}" in "\n".join(many.lines())
    fewer = estimate(corpus, unit_tokens=many.advised_unit_tokens)
    assert fewer.units <= 10 and "--unit-tokens" not in "\n".join(fewer.lines())


def test_what_is_left_out_is_said(estimate, tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "good.txt").write_text("a text that can be indexed")
    (corpus / "empty.txt").write_text(" ")
    (corpus / "latin.txt").write_bytes(b"caf\xe9")
    found = estimate(corpus)
    assert (found.documents, found.new, found.empty, found.too_long) == (3, 1, 1, 0)
    assert [failure.source for failure in found.failed] == ["latin.txt"]
    text = "\n".join(found.lines())
    assert "1 empty, 0 too long, 1 that cannot be indexed" in text and "latin.txt: " in text
