"""`sift-index tune` as a user runs it: from a corpus to a policy, a build and a quiet index."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner, Result

from sift_index.cli.main import cli
from sift_index.runtime.index import SiftIndex
from sift_index.selection.policy import ProbePolicy, read_policy
from sift_index.selection.probe_bank import build_bank
from sift_index.selection.probes import probe_texts
from tests.pipelines.builds import InlineCrew

SMALL = {"rule": "probe", "probe_rows": 64, "probe_tokens": 64, "skip_last_layer": False}


@pytest.fixture
def inline(local_ray, monkeypatch) -> Iterator[None]:
    """Build with the worker in this process instead of an actor."""
    threads = torch.get_num_threads()
    monkeypatch.setattr("sift_index.pipelines.build.Crew", InlineCrew)
    yield
    torch.set_num_threads(threads)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tune") / "mills"
    folder.mkdir()
    for number in range(6):
        sentences = (f"Mill {number} had {n * number} wheels in year {1700 + n}." for n in range(5))
        (folder / f"{number}.txt").write_text(" ".join(sentences))
    return folder


@pytest.fixture
def base(tmp_path, tiny_model_dir) -> tuple[object, ...]:
    """Options of a small run that writes to policy.yaml."""
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL))
    small = ("--prompts", 4, "--max-tokens", 700, "--policy", tmp_path / "small.yaml")
    return "--model", tiny_model_dir, *small, "--out", tmp_path / "policy.yaml"


def test_from_a_corpus_to_an_index_that_says_how_good_it_is(
    corpus, base, tiny_model_dir, local_ray, tmp_path
):
    out, index = tmp_path / "policy.yaml", tmp_path / "index"
    result = call("tune", corpus, *base, "--max-kl", 0.05)
    assert result.exit_code == 0, result.output
    assert "4 prompts of corpus mills" in result.stdout
    assert f"sift-index build {corpus} --model {tiny_model_dir} --policy {out}" in result.stdout
    file = read_policy(str(out))
    (quality,) = file.quality
    assert (quality["model"], quality["data"]) == (tiny_model_dir.name, "corpus mills")
    assert quality["kl"] <= 0.05 and quality["prompts"] == 4
    assert isinstance(file.policy, ProbePolicy) and len(file.policy.head_weights) == 2
    notes = flat(out.read_text().replace("#", ""))
    assert "with head weights" in notes and "mean KL <= 0.05 nats" in notes

    building = ["build", corpus, "--model", tiny_model_dir, "--index", index, "--policy", out]
    assert call(*building).exit_code == 0
    shown = json.loads(call("inspect", index, "--output", "json").stdout)
    assert shown["quality"] == quality and "quality" not in shown["policy"]
    assert f"quality: KL {quality['kl']:.3g} [" in flat(call("inspect", index).stdout)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert SiftIndex.open(index).counters.warnings == 0


def test_an_index_of_an_unmeasured_policy_says_so(
    corpus, base, tiny_model_dir, local_ray, tmp_path
):
    index = tmp_path / "index"
    building = ["build", corpus, "--model", tiny_model_dir, "--index", index]
    assert call(*building, "--policy", tmp_path / "small.yaml").exit_code == 0
    assert "quality: not measured" in call("inspect", index).stdout
    assert json.loads(call("inspect", index, "--output", "json").stdout)["quality"] is None
    questions = tmp_path / "q.jsonl"
    entry = {"id": 1, "question": "?", "answers": ["a"], "documents": ["1.txt", "2.txt"]}
    questions.write_text(json.dumps(entry))
    asked = ["--questions", questions, "--corpus", corpus, "--methods", "dense,sift"]
    brief = ("--no-generate", "--no-recall")
    result = call("eval", index, "--model", tiny_model_dir, *asked, *brief)
    assert result.exit_code == 0, result.output
    assert result.stderr.count("carries no measured quality: run `sift-index tune`") == 1


def test_questions_and_json(corpus, base, tmp_path):
    questions = tmp_path / "mills.jsonl"
    entries = [
        {"id": n, "question": "Which?", "answers": ["a"], "documents": [f"{n}.txt", f"{n + 1}.txt"]}
        for n in range(5)
    ]
    questions.write_text("\n".join(map(json.dumps, entries)))
    asked = ["--questions", questions, "--corpus", corpus, "--max-kl", 0.05]
    result = call("tune", *base, *asked, "--no-head-weights", "--output", "json")
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    file = read_policy(values["policy_file"])
    assert file.quality == (values["quality"],)
    assert isinstance(file.policy, ProbePolicy)
    assert file.policy.ca_thresholds == (values["best"]["ca_threshold"],)
    assert file.policy.head_weights == ()
    assert values["met"] is True and values["best"] in values["points"]
    assert values["quality"]["data"] == "questions mills.jsonl"
    assert values["target"] == {"max_kl": 0.05, "min_top1": None}
    assert values["local_points"] == []
    assert "CA threshold" in result.stderr and "4/4" in result.stderr


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_target_that_nothing_meets_writes_nothing(corpus, base, tmp_path, output):
    result = call("tune", corpus, *base, "--max-kl", 1e-12, "--no-head-weights", "--output", output)
    assert result.exit_code == 1
    assert not (tmp_path / "policy.yaml").exists()
    assert "mean KL <= 1e-12 nats on 4 prompts, found none; the closest have KL" in result.stderr
    if output == "text":
        assert "CA threshold" in result.stdout and " no" in result.stdout
        return
    error = json.loads(result.stdout)["error"]
    assert error["type"] == "TargetNotMetError" and error["message"] in result.stderr
    assert error["closest"] == error["points"][0] and error["closest"]["kl"]["mean"] > 1e-12
    assert error["best"] is None and error["quality"]["ca_density"] < 1


def test_probe_texts_of_the_corpus_are_those_of_the_build(
    corpus, base, tiny_model_dir, inline, tmp_path, monkeypatch
):
    banks = []

    def watched(loaded, policy, prefix):
        banks.append(probe_texts(policy.probe_source))
        return build_bank(loaded, policy, prefix)

    monkeypatch.setattr("sift_index.selection.extractor.build_bank", watched)
    (tmp_path / "small.yaml").write_text(yaml.safe_dump({**SMALL, "probe_source": "corpus"}))
    result = call("tune", corpus, *base, "--max-kl", 1, "--no-head-weights")
    assert result.exit_code == 0, result.output
    out, index = tmp_path / "policy.yaml", tmp_path / "index"
    policy = read_policy(str(out)).policy
    assert isinstance(policy, ProbePolicy) and policy.probe_source == "corpus"
    building = ["build", corpus, "--model", tiny_model_dir, "--index", index, "--policy", out]
    assert call(*building).exit_code == 0
    *tuned, built = banks
    assert tuned and all(texts == built for texts in tuned)
    assert built == probe_texts(str(index / "probes"))


def test_an_existing_file_is_refused_before_the_model_is_loaded(corpus, base, tmp_path):
    (tmp_path / "policy.yaml").write_text("mine")
    result = call("tune", corpus, *base, "--model", "no-such-model")
    assert result.exit_code == 2 and "--force" in result.stderr
    assert (tmp_path / "policy.yaml").read_text() == "mine"


def test_force_replaces_the_file(corpus, base, tmp_path):
    out = tmp_path / "policy.yaml"
    out.write_text("mine")
    result = call("tune", corpus, *base, "--force", "--min-top1", 0.01, "--no-head-weights")
    assert result.exit_code == 0, result.output
    assert read_policy(str(out)).quality[0]["top1"] >= 0.01


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "found neither"),
        (("CORPUS", "--questions", "q.jsonl"), "found both"),
        (("CORPUS", "--policy", "paper"), "rule 'paper'"),
        (("CORPUS", "--policy", "nope"), "found 'nope'"),
        (("--questions", "q.jsonl", "--policy", "PROBES"), "probe_source 'corpus'"),
        (("CORPUS", "--max-kl", "0"), "max_kl"),
        (("CORPUS", "--min-top1", "95"), "min_top1"),
        (("CORPUS", "--out", "/proc/policy.yaml"), "cannot be written"),
    ],
)
def test_wrong_usage_is_found_before_the_model_is_loaded(corpus, arguments, message, tmp_path):
    probes = tmp_path / "probes.yaml"
    probes.write_text("rule: probe\nprobe_source: corpus\n")
    places = {"CORPUS": corpus, "PROBES": probes}
    given = [places.get(argument, argument) for argument in arguments]
    out = () if "--out" in given else ("--out", tmp_path / "policy.yaml")
    result = call("tune", *given, "--model", "no-such-model", *out)
    assert result.exit_code == 2 and message in result.stderr
    assert not (tmp_path / "policy.yaml").exists()


def test_too_small_a_sample_is_refused(corpus, base, tmp_path):
    questions = tmp_path / "q.jsonl"
    entry = {"id": 1, "question": "?", "answers": ["a"], "documents": ["1.txt", "2.txt"]}
    questions.write_text(json.dumps(entry))
    result = call("tune", *base, "--questions", questions, "--corpus", corpus)
    assert result.exit_code == 2 and "at least 4 prompts" in result.stderr
    result = call("tune", corpus, *base, "--prompts", 3)
    assert result.exit_code == 2 and "--prompts" in result.stderr


def test_documents_that_cannot_be_read_are_left_out_and_said(corpus, base, tmp_path):
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    (mixed / "bad.txt").write_bytes(b"caf\xe9")
    (mixed / "good.txt").write_text((corpus / "1.txt").read_text())
    result = call("tune", mixed, *base)
    assert result.exit_code == 2 and "made of 1 different documents" in result.stderr
    assert "1 documents left out, the first: bad.txt" in result.stderr
