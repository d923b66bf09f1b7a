"""Nodes with another tokenizer or another model are refused by name, before they do any work."""

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from sift_index.errors import BuildError
from sift_index.formats.fingerprint import Fingerprint
from sift_index.models.digests import tokenizer_digest
from sift_index.pipelines.agreement import require_same_worker, require_tokenizer
from sift_index.pipelines.build import document_rules
from sift_index.pipelines.corpus import open_corpus
from sift_index.pipelines.crew import Crew
from sift_index.pipelines.documents import prompt_writer, scan_batch
from sift_index.pipelines.limits import Limits
from tests.pipelines.builds import InlineCrew, text, tiny_config, write_corpus

OTHER = "0" * 32


@pytest.fixture
def corpus(tmp_path) -> Path:
    return write_corpus(tmp_path / "corpus", {"a.txt": text(200, 1)})


@pytest.fixture
def config(corpus, tmp_path, tiny_model_dir):
    return tiny_config(corpus, tmp_path / "index", tiny_model_dir)


def test_the_rules_carry_the_digest_of_the_drivers_tokenizer(config, tiny_model_dir) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    assert document_rules(config).tokenizer == tokenizer_digest(tokenizer)
    require_tokenizer("m", tokenizer_digest(tokenizer), tokenizer)
    require_tokenizer("m", "", tokenizer)


def test_a_process_with_another_tokenizer_does_not_tokenise(config, corpus) -> None:
    rules, reader = replace(document_rules(config), tokenizer=OTHER), open_corpus(corpus)
    with pytest.raises(BuildError, match=rf"expected {OTHER}, the driver's, found \w+ on .*same"):
        scan_batch(reader, list(reader.locations()), rules)


def test_a_worker_with_another_tokenizer_is_refused_before_any_work(
    local_ray, config, corpus, tmp_path
) -> None:
    rules = replace(document_rules(config), tokenizer=OTHER)
    crew = InlineCrew(config, open_corpus(corpus), rules)
    with (
        crew,
        pytest.raises(BuildError, match="tokenizer of .*the driver's, found .*same on every"),
    ):
        _ = crew.fingerprint
    assert not (tmp_path / "index").exists()


def test_what_a_worker_would_build_otherwise_is_listed() -> None:
    mine = Fingerprint({"dtype": "float32", "tokenizer": "a"}, {})
    theirs = Fingerprint({"dtype": "bfloat16", "tokenizer": "a"}, {})
    require_same_worker(mine, Fingerprint(mine.build, {}, {"versions": "other"}))
    with pytest.raises(BuildError) as caught:
        require_same_worker(mine, theirs)
    line = "build.dtype: the first worker has 'float32', this one has 'bfloat16'"
    assert line in str(caught.value) and "tokenizer:" not in str(caught.value)


def test_files_that_change_on_a_node_are_noticed(config, tiny_model_dir, tmp_path) -> None:
    """A process that starts later finds another tokenizer in the same folder."""
    model = tmp_path / "model"
    shutil.copytree(tiny_model_dir, model)
    rules = document_rules(replace(config, model=str(model)))
    prompt_writer(rules.model, rules.template, rules.tokenizer)
    prompt_writer.cache_clear()
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_tokens(["<new>"])
    tokenizer.save_pretrained(model)
    with pytest.raises(BuildError, match="tokenizer of .*model: expected"):
        prompt_writer(rules.model, rules.template, rules.tokenizer)


class Mute:
    """A worker that dies while it loads, as often as a file says."""

    def __init__(self, *given: object) -> None:
        self.given = given

    def place(self) -> str:
        return "here"

    def fingerprint(self) -> Fingerprint:
        folder = Path(self.given[0].corpus).parent  # type: ignore[attr-defined]
        left = len(list(folder.glob("death-*")))
        if left:
            (folder / f"death-{left}").unlink()
            os._exit(1)
        return Fingerprint({"tokenizer": self.given[2].tokenizer}, {})  # type: ignore[attr-defined]


@pytest.mark.parametrize("deaths", [1, 3])
def test_the_first_worker_may_die_while_it_loads_but_not_for_ever(
    local_ray, config, corpus, tmp_path, monkeypatch, deaths
) -> None:
    monkeypatch.setattr("sift_index.pipelines.crew.BuildWorker", Mute)
    for number in range(deaths):
        (tmp_path / f"death-{number + 1}").touch()
    rules = document_rules(config)
    with Crew(config, open_corpus(corpus), rules) as crew:
        if deaths < 3:
            assert crew.fingerprint.build["tokenizer"] == rules.tokenizer
        else:
            with pytest.raises(BuildError, match="died while loading.*enough memory"):
                _ = crew.fingerprint


def test_a_first_worker_that_hangs_is_not_waited_for(
    local_ray, config, corpus, monkeypatch
) -> None:
    class Slow(Mute):
        def fingerprint(self) -> Fingerprint:
            time.sleep(600)
            raise AssertionError

    monkeypatch.setattr("sift_index.pipelines.crew.LIMITS", Limits(loading=0.3))
    monkeypatch.setattr("sift_index.pipelines.crew.BuildWorker", Slow)
    crew = Crew(config, open_corpus(corpus), document_rules(config))
    with crew, pytest.raises(BuildError, match=r"did not load within 0 s"):
        _ = crew.fingerprint


def test_a_cluster_without_a_place_is_said(local_ray, config, corpus, monkeypatch) -> None:
    monkeypatch.setattr("sift_index.pipelines.crew.LIMITS", Limits(nothing_alive=0.5))
    monkeypatch.setattr("sift_index.pipelines.crew.BuildWorker", Mute)
    monkeypatch.setattr(
        "sift_index.pipelines.crew.worker_resources", lambda *_: {"num_cpus": 10_000}
    )
    crew = Crew(config, open_corpus(corpus), document_rules(config))
    with crew, pytest.raises(BuildError, match="no worker found a place.*ray status"):
        _ = crew.fingerprint
