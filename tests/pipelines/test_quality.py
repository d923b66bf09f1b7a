"""Measured quality: from the policy's entries into the manifest, and kept by later versions."""

import json
from pathlib import Path

import pytest

from sift_index.errors import FingerprintMismatchError
from sift_index.formats.reader import IndexReader
from sift_index.selection.policy import PaperPolicy
from tests.pipelines.builds import text, write_corpus
from tests.plans import QUALITY

OTHER = {**QUALITY, "model": "other", "kl": 0.5}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus", {f"{i}.txt": text(90 + 50 * i, i) for i in range(2)})


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return tmp_path / "index"


def quality_of(index: Path, version: int | None = None):
    return IndexReader.open(index, version=version).manifest.quality


def test_the_entry_of_the_model_is_recorded(inline, corpus, index, tiny_model_dir) -> None:
    assert tiny_model_dir.name == QUALITY["model"]  # a local folder goes by its base name
    assert inline(corpus, index, quality=(OTHER, QUALITY)).published
    assert quality_of(index) == QUALITY


def test_a_measurement_of_another_model_says_nothing(inline, corpus, index) -> None:
    inline(corpus, index, quality=(OTHER,))
    assert quality_of(index) is None


def test_an_append_keeps_what_was_measured(inline, corpus, index) -> None:
    inline(corpus, index, quality=(QUALITY,))
    write_corpus(corpus, {"new.txt": text(123, 123)})
    assert inline(corpus, index).version == 2
    assert quality_of(index) == QUALITY
    write_corpus(corpus, {"newer.txt": text(124, 124)})
    again = {**QUALITY, "kl": 0.25}
    assert inline(corpus, index, quality=(again,)).version == 3
    assert (quality_of(index), quality_of(index, 2)) == (again, QUALITY)


def test_another_build_inherits_nothing(inline, corpus, index) -> None:
    inline(corpus, index, quality=(QUALITY,))
    with pytest.raises(FingerprintMismatchError):
        inline(corpus, index, policy=PaperPolicy())
    assert quality_of(index) == QUALITY


def test_a_new_measurement_alone_is_a_version(inline, corpus, index) -> None:
    inline(corpus, index)
    assert quality_of(index) is None
    found = inline(corpus, index, quality=(QUALITY,))
    assert (found.published, found.version, found.new_keys) == (True, 2, 0)
    assert (quality_of(index), quality_of(index, 1)) == (QUALITY, None)
    assert not inline(corpus, index, quality=(QUALITY,)).published
    assert not inline(corpus, index).published
    reader = IndexReader.open(index)
    assert reader.verify().ok and len(reader) == 2


def test_a_measurement_alone_is_no_index(inline, tmp_path, index) -> None:
    empty = write_corpus(tmp_path / "empty", {"empty.txt": " "})
    assert inline(empty, index, quality=(QUALITY,)).version is None
    assert not list(index.glob("manifest-*"))


def test_quality_is_no_part_of_the_fingerprint(inline, corpus, index, tmp_path) -> None:
    inline(corpus, index, quality=(QUALITY,))
    inline(corpus, tmp_path / "plain")
    ours, theirs = (IndexReader.open(p).manifest for p in (index, tmp_path / "plain"))
    assert ours.fingerprint == theirs.fingerprint
    assert "made up" not in json.dumps(ours.fingerprint.to_json())
