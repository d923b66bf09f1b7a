"""JSON Lines."""

import json
import pickle
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sift_index.errors import DocumentError
from sift_index.pipelines.corpus import CorpusReader, Document, Location, open_corpus
from sift_index.pipelines.corpus.lines import BLOCK, LineNumbers

from .conftest import Write


def read_all(reader: CorpusReader) -> list[Document]:
    return [reader.read(location) for location in reader.locations()]


def failure(reader: CorpusReader, index: int = 0) -> str:
    with pytest.raises(DocumentError) as caught:
        reader.read(list(reader.locations())[index])
    return str(caught.value)


def test_positions_are_byte_offsets_and_blank_lines_are_skipped(write: Write) -> None:
    lines = '{"id": "ä", "text": "x"}\r\n\n  \t\r\n{"id": "b", "text": "y"}'
    reader = open_corpus(write("x.jsonl", lines))
    places = list(reader.locations())
    second = lines.encode().index(b'{"id": "b"')
    assert places == [Location("x.jsonl", 0), Location("x.jsonl", second)]
    assert read_all(reader) == [Document("ä", "x"), Document("b", "y")]
    assert [reader.source(place) for place in places] == ["x.jsonl:1", "x.jsonl:4"]


def test_listing_parses_no_json(write: Write) -> None:
    assert len(list(open_corpus(write("x.ndjson", "not json\n{\n")).locations())) == 2


def test_byte_order_mark_is_dropped(write: Write) -> None:
    reader = open_corpus(write("x.jsonl", b'\xef\xbb\xbf{"id": "a", "text": "x"}\n'))
    assert read_all(reader) == [Document("a", "x")]
    assert list(open_corpus(write("only_mark.jsonl", b"\xef\xbb\xbf\n")).locations()) == []


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"_id": "c", "doc_id": "b", "id": "a"}, "a"),
        ({"_id": "c", "doc_id": "b"}, "b"),
        ({"_id": "c"}, "c"),
        ({"id": 7}, "7"),
        ({"id": 1.5}, "1.5"),
        ({"name": "n"}, "x.jsonl:1"),
    ],
)
def test_id_is_found(write: Write, record: dict[str, object], expected: str) -> None:
    reader = open_corpus(write("x.jsonl", [{**record, "text": "t"}]))
    assert read_all(reader) == [Document(expected, "t")]


def test_given_fields_win(write: Write) -> None:
    path = write("x.jsonl", [{"id": "a", "name": "n", "body": "b", "text": "t"}])
    assert read_all(open_corpus(path, "body", "name")) == [Document("n", "b")]


def test_text_field_is_not_taken_for_an_id(write: Write) -> None:
    path = write("x.jsonl", [{"id": "the text"}])
    assert read_all(open_corpus(path, text_field="id")) == [Document("x.jsonl:1", "the text")]


@pytest.mark.parametrize("value", [None, "", "  ", [], {"$oid": "5"}, float("nan")])
def test_unusable_id_is_refused(write: Write, value: object) -> None:
    message = failure(open_corpus(write("x.jsonl", [{"id": value, "text": "t"}])))
    assert message.startswith("x.jsonl:1: expected a string or number as id in field 'id'")


def test_given_id_field_must_exist(write: Write) -> None:
    reader = open_corpus(write("x.jsonl", [{"id": "a", "text": "t"}]), id_field="key")
    message = failure(reader)
    assert "field 'key', found 'id', 'text'" in message
    assert "--id-field" in message


def test_malformed_json_names_line_and_column(write: Write) -> None:
    reader = open_corpus(write("x.jsonl", '{"text": "a"}\n\n{"text" "b"}\n'))
    message = failure(reader, 1)
    assert message.startswith("x.jsonl:3: ")
    assert "column 9" in message


@pytest.mark.parametrize(
    ("line", "found"),
    [("[1]", "an array"), ('"a"', "a string"), ("null", "null"), ("3", "a number")],
)
def test_line_must_be_an_object(write: Write, line: str, found: str) -> None:
    message = failure(open_corpus(write("x.jsonl", line)))
    assert message.startswith(f"x.jsonl:1: expected a JSON object, found {found};")


@pytest.mark.parametrize("line", ["[" * 100_000, '{"text": ' + "9" * 5_000 + "}"])
def test_json_beyond_the_parser_is_a_document_error(write: Write, line: str) -> None:
    assert failure(open_corpus(write("x.jsonl", line))).startswith("x.jsonl:1: ")


def test_missing_text_names_fields_and_option(write: Write) -> None:
    message = failure(open_corpus(write("x.jsonl", [{"body": "b", "title": "t"}])))
    assert "field 'text', found 'body', 'title'" in message
    assert "--text-field" in message


def test_record_without_fields_says_so(write: Write) -> None:
    assert "found no field" in failure(open_corpus(write("x.jsonl", [{}])))


@pytest.mark.parametrize(
    ("value", "found"), [(None, "null"), (1, "a number"), (True, "a boolean"), ({}, "an object")]
)
def test_text_must_be_a_string(write: Write, value: object, found: str) -> None:
    message = failure(open_corpus(write("x.jsonl", [{"id": "a", "text": value}])))
    assert f"found {found}; the fields are 'id', 'text'" in message
    assert "--text-field" in message


@pytest.mark.parametrize("record", [r'{"text": "a\ud800b"}', r'{"id": "\udfff", "text": "a"}'])
def test_lone_surrogates_are_refused(write: Write, record: str) -> None:
    assert "lone surrogate U+D" in failure(open_corpus(write("x.jsonl", record)))


def test_surrogate_pairs_and_nul_are_kept(write: Write) -> None:
    reader = open_corpus(write("x.jsonl", r'{"text": "\ud83d\ude00\u0000"}'))
    assert read_all(reader)[0].text == "\U0001f600\x00"


def test_bad_utf8_names_the_offset_in_the_file(write: Write) -> None:
    data = b'{"text": "ok"}\n{"text": "caf\xe9"}\n'
    message = failure(open_corpus(write("x.jsonl", data)), 1)
    assert message.startswith("x.jsonl:2: ")
    assert f"byte 0xe9 at byte offset {data.index(0xE9)}" in message


def test_source_survives_a_vanished_file(write: Write) -> None:
    path = write("x.jsonl", [{"text": "a"}])
    reader = open_corpus(path)
    path.unlink()
    assert reader.source(Location("x.jsonl", 0)) == "x.jsonl byte 0"
    with pytest.raises(DocumentError, match="No such file"):
        reader.read(Location("x.jsonl", 0))


def test_line_numbers_agree_with_counting_in_any_order(write: Write) -> None:
    data = (b"x" * 1000 + b"\n") * (3 * BLOCK // 1000)
    lines = LineNumbers(write("x", data))
    for offset in (2 * BLOCK + 5, 0, BLOCK, BLOCK - 1, 1000, 1001, len(data) - 1):
        assert lines.at(offset) == data[:offset].count(b"\n") + 1


def test_pickling_leaves_the_caches_behind(write: Write) -> None:
    reader = open_corpus(write("x.jsonl", [{"text": "a"}, {"text": "b"}]))
    size = len(pickle.dumps(reader))
    documents = read_all(reader)
    copy: CorpusReader = pickle.loads(pickle.dumps(reader))
    assert copy == reader
    assert read_all(copy) == documents
    assert len(pickle.dumps(reader)) == size


unicode_text = st.text(st.characters(exclude_categories=["Cs"]))
records = st.lists(st.tuples(unicode_text, st.booleans(), st.sampled_from(["\n", "\r\n", "\n\n"])))


@given(records)
def test_any_unicode_text_round_trips(items: list[tuple[str, bool, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.jsonl")
        lines = (
            json.dumps({"id": i, "text": text}, ensure_ascii=escaped) + end
            for i, (text, escaped, end) in enumerate(items)
        )
        path.write_bytes("".join(lines).encode())
        expected = [Document(str(i), text) for i, (text, *_) in enumerate(items)]
        assert read_all(open_corpus(path)) == expected
