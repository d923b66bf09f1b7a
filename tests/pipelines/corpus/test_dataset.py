"""Saved data sets and the files of the packaged builders, always without a network."""

import json
import pickle
import socket
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sift_index.errors import CorpusError, DocumentError
from sift_index.pipelines.corpus import CorpusReader, Document, Location, open_corpus

from .conftest import Write

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keep the cache in tmp_path, and fail on any connection although the hub is allowed."""
    tried: list[str] = []

    def refuse(*arguments: Any, **options: Any) -> Any:
        tried.append(str(arguments))
        raise OSError("no network in this test")

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return tried


def read_all(reader: CorpusReader) -> list[Document]:
    return [reader.read(location) for location in reader.locations()]


def saved(path: Path, columns: dict[str, Any]) -> Path:
    datasets.Dataset.from_dict(columns).save_to_disk(path)
    return path


def test_saved_dataset_is_read(tmp_path: Path) -> None:
    reader = open_corpus(saved(tmp_path / "mine", {"text": ["a", "b"], "id": [1, 2]}))
    assert list(reader.locations()) == [Location("", 0), Location("", 1)]
    assert read_all(reader) == [Document("1", "a"), Document("2", "b")]
    assert reader.source(Location("", 1)) == "mine row 1"


def test_saved_splits_follow_one_another(tmp_path: Path) -> None:
    train = datasets.Dataset.from_dict({"text": ["a", "b"]})
    test = datasets.Dataset.from_dict({"text": ["c"], "other": [1]})
    datasets.DatasetDict(train=train, test=test).save_to_disk(tmp_path / "mine")
    reader = open_corpus(tmp_path / "mine")
    assert read_all(reader) == [
        Document("mine/train#0", "a"),
        Document("mine/train#1", "b"),
        Document("mine/test#0", "c"),
    ]
    assert reader.source(Location("", 2)) == "mine/test row 0"


def test_output_format_of_a_saved_dataset_does_not_matter(tmp_path: Path) -> None:
    table = datasets.Dataset.from_dict({"text": ["a"], "id": [1]}).with_format("numpy")
    table.save_to_disk(tmp_path / "mine")
    assert read_all(open_corpus(tmp_path / "mine")) == [Document("1", "a")]


def test_state_file_of_something_else_is_no_dataset(write: Write) -> None:
    write("corpus/state.json", json.dumps({"open_tabs": []}))
    reader = open_corpus(write("corpus/a.txt", "a").parent)
    assert read_all(reader) == [Document("a.txt", "a")]


def test_csv_is_read_as_written(write: Write) -> None:
    reader = open_corpus(write("t.csv", 'id,text\n007,"one, two"\n8,NA\n9,\n10,5\n'))
    assert read_all(reader) == [
        Document("007", "one, two"),
        Document("8", "NA"),
        Document("9", ""),
        Document("10", "5"),
    ]
    assert reader.source(Location("", 2)) == "t.csv row 2"


def test_csv_with_named_fields(write: Write) -> None:
    reader = open_corpus(write("t.csv", "key,body\n01,x\n"), "body", "key")
    assert read_all(reader) == [Document("01", "x")]


def test_json_array_is_read(write: Write) -> None:
    reader = open_corpus(write("t.json", json.dumps([{"text": "a"}, {"text": "b"}])))
    assert read_all(reader) == [Document("t.json#0", "a"), Document("t.json#1", "b")]


@pytest.mark.parametrize("writer", [pa.ipc.new_stream, pa.ipc.new_file])
def test_arrow_file_is_read(tmp_path: Path, writer: Any) -> None:
    table = pa.table({"text": ["a"], "_id": ["x"]})
    with writer(str(tmp_path / "t.arrow"), table.schema) as sink:
        sink.write_table(table)
    assert read_all(open_corpus(tmp_path / "t.arrow")) == [Document("x", "a")]


def test_no_connection_is_tried(write: Write, offline: list[str], tmp_path: Path) -> None:
    read_all(open_corpus(write("t.csv", "text\na\n")))
    read_all(open_corpus(write("t.json", [{"text": "a"}])))
    read_all(open_corpus(saved(tmp_path / "mine", {"text": ["a"]})))
    assert offline == []
    assert datasets.config.HF_HUB_OFFLINE is False


def test_name_with_wildcards_is_one_file(write: Write) -> None:
    write("ta.csv", "text\nother\n")
    assert read_all(open_corpus(write("t[a]*.csv", "id,text\n1,mine\n"))) == [Document("1", "mine")]


@pytest.mark.parametrize(
    ("options", "option"),
    [({"text_field": "body"}, "--text-field"), ({"id_field": "key"}, "--id-field")],
)
def test_missing_column_is_known_up_front(
    tmp_path: Path, options: dict[str, str], option: str
) -> None:
    path = saved(tmp_path / "mine", {"text": ["a"], "title": ["b"]})
    with pytest.raises(CorpusError, match=f"mine: .*found 'text', 'title'.*{option}"):
        open_corpus(path, **options)


def test_null_text_is_a_document_error(tmp_path: Path) -> None:
    reader = open_corpus(saved(tmp_path / "mine", {"text": ["a", None]}))
    with pytest.raises(DocumentError, match="mine row 1: .*found null"):
        reader.read(Location("", 1))


def test_row_beyond_the_end_is_a_document_error(tmp_path: Path) -> None:
    reader = open_corpus(saved(tmp_path / "mine", {"text": ["a"]}))
    with pytest.raises(DocumentError, match="mine row 1: expected a row below 1"):
        reader.read(Location("", 1))


def test_incomplete_saved_dataset_is_a_corpus_error(tmp_path: Path) -> None:
    path = saved(tmp_path / "mine", {"text": ["a"]})
    (path / "dataset_info.json").unlink()
    with pytest.raises(CorpusError, match="mine: expected a data set .*complete"):
        open_corpus(path)


def test_malformed_json_is_a_corpus_error(write: Write) -> None:
    with pytest.raises(CorpusError, match="t.json: expected a data set"):
        open_corpus(write("t.json", '[{"text": '))


def test_changed_file_is_read_anew(write: Write) -> None:
    assert read_all(open_corpus(write("t.csv", "id,text\n1,a\n")))[0].text == "a"
    assert read_all(open_corpus(write("t.csv", "id,text\n1,bb\n")))[0].text == "bb"


def test_pickling_leaves_the_table_behind(tmp_path: Path) -> None:
    reader = open_corpus(saved(tmp_path / "mine", {"text": ["secret"], "id": ["1"]}))
    data = pickle.dumps(reader)
    copy: CorpusReader = pickle.loads(data)
    assert b"secret" not in data
    assert read_all(copy) == [Document("1", "secret")]
