"""Scanning: the same catalogue from this process and from Ray tasks, in corpus order."""

import io
import json
from typing import Any

import numpy as np
import pytest

from sift_index.errors import CorpusError
from sift_index.pipelines import scanning
from sift_index.pipelines.build import document_rules
from sift_index.pipelines.catalogue import Catalogue
from sift_index.pipelines.corpus import Document, Location, open_corpus
from sift_index.pipelines.progress import LogProgress
from sift_index.pipelines.scanning import scan_corpus
from tests.pipelines.builds import text, tiny_config, write_corpus


@pytest.fixture
def rules(tmp_path, tiny_model_dir):
    return document_rules(tiny_config(tmp_path, tmp_path / "index", tiny_model_dir))


@pytest.fixture
def log():
    return io.StringIO()


@pytest.fixture
def progress(log):
    return LogProgress(log)


def content_of(catalogue: Catalogue) -> list[Any]:
    """Everything a catalogue says, as values that compare."""
    places = catalogue.places.at(np.arange(len(catalogue)))
    arrays = (catalogue.offsets, catalogue.keys, catalogue.tokens)
    counts = (catalogue.read, catalogue.skipped, catalogue.repeats, catalogue.unread)
    return [
        catalogue.ids.to_pylist(),
        *(array.tolist() for array in arrays),
        places,
        counts,
        catalogue.failed,
        catalogue.clashes,
    ]


def test_tasks_find_what_one_process_finds(
    local_ray, rules, progress, tmp_path, monkeypatch, log
) -> None:
    lines = [{"id": f"d{i // 2}", "text": text(40, i % 7)} for i in range(60)]
    content = "\n".join(json.dumps(line) for line in lines)
    corpus = write_corpus(tmp_path / "corpus", {"x.jsonl": content, "y.txt": b"\xff"})
    here = scan_corpus(open_corpus(corpus), rules, progress)
    monkeypatch.setattr(scanning, "SCAN_BATCH", 7)
    spread = scan_corpus(open_corpus(corpus), rules, progress)
    assert content_of(spread) == content_of(here)
    assert here.read == 61 and len(here.distinct) == 7 and len(here.clashes) > 0
    noted = f"61 documents read, 7 distinct texts to index, {1 + len(here.clashes)} documents"
    assert noted in log.getvalue()


def test_a_cluster_that_takes_long_to_read_is_said(
    local_ray, rules, progress, tmp_path, monkeypatch, log
) -> None:
    corpus = write_corpus(tmp_path / "corpus", {f"{i}.txt": text(40, i) for i in range(9)})
    monkeypatch.setattr(scanning, "SCAN_BATCH", 2)
    assert scan_corpus(open_corpus(corpus), rules, progress).read == 9
    assert "ray status" not in log.getvalue()
    monkeypatch.setattr(scanning, "SLOW_SECONDS", 0.0)  # no task is that fast
    assert scan_corpus(open_corpus(corpus), rules, progress).read == 9
    assert "CPU that is free (`ray status`)" in log.getvalue()


def test_a_corpus_without_a_document_is_an_error(rules, progress, tmp_path) -> None:
    corpus = write_corpus(tmp_path / "corpus", {"x.jsonl": "\n\n"})
    with pytest.raises(CorpusError, match="found none"):
        scan_corpus(open_corpus(corpus), rules, progress)


class BrokenReader:
    """A data set that cannot be opened where the task runs."""

    def locations(self):
        return (Location("", row) for row in range(3))

    def read(self, location: Location) -> Document:
        raise CorpusError("expected a data set, found none on this node")

    def source(self, location: Location) -> str:
        return "broken"


def test_a_task_that_cannot_open_the_corpus_says_so(
    local_ray, rules, progress, monkeypatch
) -> None:
    monkeypatch.setattr(scanning, "SCAN_BATCH", 1)
    with pytest.raises(CorpusError) as caught:
        scan_corpus(BrokenReader(), rules, progress)
    assert str(caught.value) == "expected a data set, found none on this node"  # no Ray traceback


def test_the_evaluation_corpus_adds_up(local_ray, rules, progress, shared_data) -> None:
    if not (shared_data / "corpus").is_dir():
        pytest.skip("no evaluation corpus beside the checkout")
    found = scan_corpus(open_corpus(shared_data / "corpus"), rules, progress)
    left_out = sum(found.skipped.values()) + len(found.failed) + len(found.clashes)
    assert found.read == 552 == len(found) + found.repeats + left_out
    assert len(found) > 500
    assert len(found.distinct) >= len(found) - int(found.distinct.duplicates.sum())
    assert int(found.tokens.max()) <= rules.longest
