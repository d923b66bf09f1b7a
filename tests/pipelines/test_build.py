"""Whole builds: determinism over workers and orders, refusals that leave no trace."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sift_index.errors import (
    CorpusError,
    FingerprintMismatchError,
    ModelError,
    SiftError,
    UnsupportedModelError,
    UsageError,
)
from sift_index.formats.reader import IndexReader
from sift_index.formats.receipts import read_receipts
from sift_index.formats.store import IndexPaths
from sift_index.pipelines.build import run_build
from sift_index.selection.policy import PaperPolicy
from tests.pipelines.builds import (
    POLICY,
    hashes,
    identities,
    text,
    tiny_config,
    write_corpus,
)
from tests.tiny import byte_tokenizer, save_tiny_model


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus", {f"{i}.txt": text(150 + 50 * i, i) for i in range(4)})


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return tmp_path / "index"


def test_the_undisturbed_build_is_whole(undisturbed, many) -> None:
    reader = IndexReader.open(undisturbed)
    assert reader.verify().ok and reader.verify().garbage == ()
    assert sorted(reader.document_ids()) == sorted(path.name for path in many.iterdir())
    assert len(reader) == 48 and len(reader.manifest.packs) > 15


def test_two_workers_make_the_same_bytes_as_one(
    undisturbed, many, tiny_model_dir, tmp_path, monkeypatch
) -> None:
    # Relative paths, in another folder than Ray was started in: workers write where this one means.
    shutil.copytree(many, tmp_path / "documents")
    shutil.copytree(tiny_model_dir, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    config = tiny_config(Path("documents"), Path("index"), Path("model"), workers=2)
    found = run_build(config)
    assert (found.workers, found.new_keys, found.retries) == (2, 48, 0)
    assert hashes(tmp_path / "index") == hashes(undisturbed)
    receipts = read_receipts(IndexPaths(tmp_path / "index"))
    assert {r.unit for r in receipts} == {r.unit for r in read_receipts(IndexPaths(undisturbed))}


def test_a_build_in_this_process_makes_the_same_bytes(inline, undisturbed, many, index) -> None:
    inline(many, index)
    assert hashes(index) == hashes(undisturbed)


def test_one_file_of_the_same_documents_in_another_order_has_the_same_packs(
    inline, undisturbed, many, tmp_path, index
) -> None:
    files = sorted(many.iterdir(), reverse=True)
    lines = [json.dumps({"id": path.name, "text": path.read_text()}) for path in files]
    inline(write_corpus(tmp_path / "lines", {"all.jsonl": "\n".join(lines)}), index)
    assert hashes(index) == hashes(undisturbed)


def test_the_codec_changes_the_packs_and_not_the_masks(inline, index, tmp_path) -> None:
    corpus = write_corpus(tmp_path / "corpus", {"long.txt": "long " * 700})
    raw, small = index, tmp_path / "small"
    sizes = [inline(corpus, raw).index_bytes, inline(corpus, small, codec="zstd").index_bytes]
    assert sizes[1] < sizes[0]
    (key,) = IndexReader.open(raw).document_keys("long.txt")
    ours, theirs = IndexReader.open(raw).lookup(key), IndexReader.open(small).lookup(key)
    assert ours and theirs and ours.la and theirs.la
    assert ours.la.packed.tobytes() == theirs.la.packed.tobytes()
    assert ours.ca.packed.tobytes() == theirs.ca.packed.tobytes()


@pytest.fixture
def built(inline, corpus, index):
    """An index to which something else is about to be appended."""
    inline(corpus, index)
    write_corpus(corpus, {"new.txt": text(123, 123)})
    return index


@pytest.mark.parametrize(
    ("changes", "field", "values"),
    [
        ({"policy": PaperPolicy()}, "build.policy.rule", ("'probe'", "'paper'")),
        (
            {"policy": replace(POLICY, ca_thresholds=(0.5,))},
            "build.policy.ca_thresholds",
            ("[0.003]", "[0.5]"),
        ),
        ({"prefix": "Other: "}, "build.prefix", ("Answer the question", "'Other: '")),
        ({"span_suffix": "\n\n"}, "build.span_suffix", (r"'\n'", r"'\n\n'")),
        ({"max_tokens": 300}, "build.longest", ("index has", "this build has 300")),
        ({"dtype": "bfloat16"}, "build.dtype", ("'float32'", "'bfloat16'")),
    ],
)
def test_another_setting_cannot_be_appended(inline, built, corpus, changes, field, values) -> None:
    before = identities(built)
    with pytest.raises(FingerprintMismatchError) as caught:
        inline(corpus, built, **changes)
    line = next(part for part in str(caught.value).splitlines() if part.strip().startswith(field))
    assert all(value in line for value in values)
    assert identities(built) == before


def test_another_model_cannot_be_appended(inline, built, corpus, tmp_path) -> None:
    other = save_tiny_model(tmp_path / "other", seed=1)
    before = identities(built)
    with pytest.raises(FingerprintMismatchError, match=r"build\.serve\.weights: index has '\w+'"):
        inline(corpus, built, model=other)
    assert identities(built) == before


def test_a_refusal_makes_no_folder(inline, built, corpus) -> None:
    for name in ("failed", "commits"):
        shutil.rmtree(built / name)
    with pytest.raises(FingerprintMismatchError):
        inline(corpus, built, prefix="Other: ")
    assert not (built / "failed").exists() and not (built / "commits").exists()


def config_only(folder: Path, **values: object) -> Path:
    """A model folder with a config and a tokenizer, and no weights."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values))
    byte_tokenizer().save_pretrained(folder)
    return folder


def empty_folder(folder: Path) -> Path:
    folder.mkdir()
    return folder


BAD_MODELS: dict[str, tuple[Callable[[Path], Path], type[SiftError], str]] = {
    "gpt2": (
        lambda path: config_only(path, model_type="gpt2"),
        UnsupportedModelError,
        "'gpt2' cannot be indexed",
    ),
    "sliding window": (
        lambda path: config_only(path, model_type="mistral", sliding_window=512),
        UnsupportedModelError,
        "sliding-window",
    ),
    "no model": (empty_folder, ModelError, "cannot be loaded"),
    "no such folder": (lambda path: path, UsageError, "expected a preset"),
}


@pytest.mark.parametrize("bad", BAD_MODELS)
def test_a_bad_model_is_refused_before_anything_is_written(
    inline, corpus, index, tmp_path, bad
) -> None:
    make, error, reason = BAD_MODELS[bad]
    with pytest.raises(error, match=reason):
        inline(corpus, index, model=make(tmp_path / "model"))
    assert not index.exists()


def test_a_model_that_fails_to_load_in_the_worker_is_refused_by_name(
    local_ray, corpus, index, tiny_model_dir, tmp_path
) -> None:
    shutil.copytree(tiny_model_dir, tmp_path / "cut")
    (weights,) = (tmp_path / "cut").glob("*.safetensors")
    weights.unlink()
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        run_build(tiny_config(corpus, index, tmp_path / "cut"))
    assert type(caught.value) is ModelError  # not Ray's wrapper around it
    assert not index.exists()


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (None, "no such file or folder"),
        ({}, "found none"),
        ({"photo.jpg": b"\xff"}, "photo.jpg"),
        ({"empty.jsonl": ""}, "expected documents"),
    ],
)
def test_a_corpus_without_documents_is_refused_before_anything_is_written(
    inline, tmp_path, index, files, reason
) -> None:
    folder = tmp_path / "corpus"
    if files is not None:
        folder.mkdir()
        write_corpus(folder, files)
    with pytest.raises(CorpusError, match=reason):
        inline(folder, index)
    assert not index.exists()


def test_a_prefix_that_fills_the_context_is_refused(inline, corpus, index) -> None:
    with pytest.raises(UsageError, match="context of 4096 tokens"):
        inline(corpus, index, prefix="p" * 4096)
    assert not index.exists()


def test_a_file_where_the_index_should_be_is_refused(inline, corpus, index) -> None:
    index.write_text("mine")
    with pytest.raises(SiftError, match="index"):
        inline(corpus, index)
    assert index.read_text() == "mine"


@pytest.mark.parametrize(
    "changes",
    [
        {"long": "cut"},
        {"codec": "gzip"},
        {"unit_tokens": 0},
        {"workers": 0},
        {"threads": 0},
        {"unit_timeout": 0.0},
        {"unit_timeout": float("nan")},
        {"unit_timeout": float("inf")},
        {"max_failures": -1},
    ],
)
def test_a_wrong_number_or_choice_is_refused_at_once(corpus, index, changes) -> None:
    name = next(iter(changes))
    with pytest.raises(UsageError, match=f"expected .*{name}"):
        tiny_config(corpus, index, Path("model"), **changes)
