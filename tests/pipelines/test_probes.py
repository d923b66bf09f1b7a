"""Builds with probe texts of their own corpus: sampled once, then part of the index folder."""

import json
import os
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from sift_index.errors import FingerprintMismatchError, UsageError
from sift_index.formats.reader import IndexReader
from sift_index.pipelines.build import document_rules, run_build
from sift_index.pipelines.corpus import open_corpus
from sift_index.pipelines.probes import with_probes
from sift_index.pipelines.progress import LogProgress
from sift_index.selection.corpus_probes import sample_probes
from sift_index.selection.policy import ProbePolicy
from sift_index.selection.probes import probe_texts, texts_digest
from tests.pipelines.builds import POLICY, hashes, identities, text, tiny_config, write_corpus
from tests.pipelines.test_resume import forget

SAMPLED = replace(POLICY, probe_source="corpus")
TEXTS = {f"{i}.txt": text(30 + 17 * i, i) for i in range(12)}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus", TEXTS)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return tmp_path / "index"


def build_digest(index: Path) -> str:
    return IndexReader.open(index).manifest.fingerprint.build_digest


def ca_bytes(reader: IndexReader, key: bytes) -> bytes:
    masks = reader.lookup(key)
    assert masks is not None
    return masks.ca.packed.tobytes()


def test_it_is_a_build_with_these_texts_as_a_folder(
    local_ray, corpus, index, tiny_model_dir, tmp_path
) -> None:
    found = run_build(tiny_config(corpus, index, tiny_model_dir, policy=SAMPLED, workers=2))
    assert (found.indexed, found.workers) == (12, 2)
    shutil.copytree(index / "probes", tmp_path / "texts")
    policy = replace(POLICY, probe_source=str(tmp_path / "texts"))
    run_build(tiny_config(corpus, tmp_path / "other", tiny_model_dir, policy=policy))
    assert hashes(index) == hashes(tmp_path / "other")
    assert build_digest(index) == build_digest(tmp_path / "other")


def test_the_masks_are_others_than_with_the_packaged_texts(inline, corpus, index, tmp_path) -> None:
    policy = replace(SAMPLED, ca_thresholds=(0.02,))
    inline(corpus, index, policy=policy)
    inline(corpus, tmp_path / "builtin", policy=replace(policy, probe_source="builtin"))
    ours, theirs = (IndexReader.open(path) for path in (index, tmp_path / "builtin"))
    assert len(ours) == 12
    keys = [key for name in ours.document_ids() for key in ours.document_keys(name)]
    assert any(ca_bytes(ours, key) != ca_bytes(theirs, key) for key in keys)


def test_the_texts_are_those_of_the_sample_with_the_ids_they_are_made_of(
    inline, corpus, index
) -> None:
    inline(corpus, index, policy=SAMPLED)
    expected = sample_probes(TEXTS.items(), len, SAMPLED)
    assert len(expected) == 4
    assert probe_texts(str(index / "probes")) == [probe.text for probe in expected]
    used = json.loads((index / "probes" / "documents.json").read_bytes())
    assert used == {f"probe-{n}.txt": list(p.documents) for n, p in enumerate(expected, 1)}
    assert len(list((index / "probes").iterdir())) == 5


def test_neither_files_nor_their_order_matter(inline, corpus, index, tmp_path) -> None:
    lines = [json.dumps({"id": name, "text": TEXTS[name]}) for name in sorted(TEXTS, reverse=True)]
    other = write_corpus(tmp_path / "lines", {"all.jsonl": "\n".join([*lines, "{broken"])})
    inline(corpus, index, policy=SAMPLED)
    assert inline(other, tmp_path / "other", policy=SAMPLED).indexed == 12
    assert hashes(index) == hashes(tmp_path / "other")
    assert build_digest(index) == build_digest(tmp_path / "other")


def test_the_fingerprint_has_the_digest_of_the_texts_and_no_path(inline, corpus, index) -> None:
    inline(corpus, index, policy=SAMPLED)
    build = IndexReader.open(index).manifest.fingerprint.build
    assert build["probes"] == texts_digest(probe_texts(str(index / "probes")))
    assert "probe_source" not in build["policy"]
    assert str(index) not in json.dumps(build) and "corpus" not in json.dumps(build)


def test_run_again_it_computes_and_writes_nothing(inline, corpus, index) -> None:
    inline(corpus, index, policy=SAMPLED)
    before = identities(index)
    again = inline(corpus, index, policy=SAMPLED)
    assert (again.new_keys, again.published) == (0, False)
    assert identities(index) == before


def test_an_index_inside_its_corpus_is_no_part_of_it(inline, corpus) -> None:
    first = inline(corpus, corpus / "all.sift", policy=SAMPLED)
    again = inline(corpus, corpus / "all.sift", policy=SAMPLED)
    assert (first.documents, again.documents, again.ignored_files) == (12, 12, 0)
    assert not again.published


def change(corpus: Path) -> None:
    """Take the sampled documents away and bring others."""
    for path in corpus.iterdir():
        path.unlink()
    write_corpus(corpus, {f"new{i}.txt": text(300, 50 + i) for i in range(5)})


def test_another_corpus_is_appended_with_the_texts_of_the_first(inline, corpus, index) -> None:
    inline(corpus, index, policy=SAMPLED)
    before, digest = identities(index), build_digest(index)
    change(corpus)
    found = inline(corpus, index, policy=SAMPLED)
    assert (found.version, found.new_keys) == (2, 5)
    assert build_digest(index) == digest
    assert before.items() <= identities(index).items()
    report = IndexReader.open(index).verify()
    assert report.ok and report.garbage == ()


def test_an_interrupted_build_goes_on_with_its_texts(inline, corpus, index) -> None:
    inline(corpus, index, policy=SAMPLED)
    kept = forget(index, 1)
    before = identities(index)
    write_corpus(corpus, {"new.txt": text(500, 77)})
    again = inline(corpus, index, policy=SAMPLED)
    assert again.resumed_keys == sum(len(receipt.keys) for receipt in kept) > 0
    assert again.published and before.items() <= identities(index).items()


def test_readers_do_not_need_the_texts(inline, corpus, index) -> None:
    inline(corpus, index, policy=SAMPLED)
    shutil.rmtree(index / "probes")
    reader = IndexReader.open(index)
    assert reader.verify().ok and len(reader) == 12
    inline(corpus, index, policy=SAMPLED)  # the same corpus: the same texts again
    assert len(list((index / "probes").glob("*.txt"))) == 4
    shutil.rmtree(index / "probes")
    before = identities(index)
    change(corpus)
    with pytest.raises(FingerprintMismatchError, match="build.probes: index has"):
        inline(corpus, index, policy=SAMPLED)
    assert identities(index) == before


def test_an_index_of_other_probes_is_refused_without_a_trace(inline, corpus, index) -> None:
    inline(corpus, index)
    before = identities(index)
    with pytest.raises(FingerprintMismatchError, match="holds no probe texts of a corpus: build"):
        inline(corpus, index, policy=SAMPLED)
    assert identities(index) == before and not (index / "probes").exists()


def test_a_corpus_that_is_too_small_is_refused_before_anything_is_written(
    inline, tmp_path, index
) -> None:
    corpus = write_corpus(tmp_path / "small", {"a.txt": "a" * 20, "b.txt": "b" * 20})
    with pytest.raises(UsageError, match="at least 64 tokens .* found 42; use probe_source builti"):
        inline(corpus, index, policy=SAMPLED)
    assert not index.exists()


def source_of(corpus: Path, index: Path, model: Path, policy: ProbePolicy = SAMPLED) -> str:
    config = tiny_config(corpus, index, model, policy=policy)
    found = with_probes(
        config, open_corpus(corpus), document_rules(config), LogProgress(StringIO())
    ).policy
    assert isinstance(found, ProbePolicy)
    return found.probe_source


def test_what_a_kill_while_writing_leaves_is_garbage_and_in_nobody_s_way(
    inline, corpus, index
) -> None:
    leftover = index / ".tmp-1-abc"
    write_corpus(leftover, {"probe-1.txt": "cut"})
    inline(corpus, index, policy=SAMPLED)
    report = IndexReader.open(index).verify()
    assert report.ok and report.garbage == (leftover.name,)
    assert "cut" not in probe_texts(str(index / "probes"))


def test_of_two_builds_at_once_both_use_what_the_first_wrote(
    corpus, index, tiny_model_dir, tmp_path, monkeypatch
) -> None:
    other = write_corpus(tmp_path / "other", {f"{i}.txt": text(90, 90 + i) for i in range(2)})
    place = "sift_index.pipelines.probes.sample_probes"

    def overtaken(*arguments):
        with monkeypatch.context() as patch:
            patch.setattr(place, sample_probes)
            assert source_of(other, index, tiny_model_dir) == str(index / "probes")
        return sample_probes(*arguments)

    monkeypatch.setattr(place, overtaken)
    source = source_of(corpus, index, tiny_model_dir)
    expected = sample_probes([(p.name, p.read_text()) for p in other.iterdir()], len, SAMPLED)
    assert probe_texts(source) == [probe.text for probe in expected]
    assert len(expected) == 2 and os.listdir(index) == ["probes"]


@pytest.mark.parametrize("source", ["builtin", "/texts"])
def test_other_sources_stay_as_they_are(corpus, index, tiny_model_dir, source) -> None:
    policy = replace(POLICY, probe_source=source)
    assert source_of(corpus, index, tiny_model_dir, policy) == source
    assert not index.exists()
