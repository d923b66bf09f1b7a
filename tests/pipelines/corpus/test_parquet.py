"""Parquet files."""

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sift_index.errors import CorpusError, DocumentError
from sift_index.pipelines.corpus import CorpusReader, Document, Location, open_corpus


def save(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


@pytest.fixture
def grouped(tmp_path: Path) -> Path:
    """Ten rows in row groups of three."""
    columns = {"text": [f"t{i}" for i in range(10)], "doc_id": list(range(10))}
    return save(tmp_path / "x.parquet", columns, row_group_size=3)


def test_rows_are_documents(grouped: Path) -> None:
    reader = open_corpus(grouped)
    places = list(reader.locations())
    assert places == [Location("x.parquet", row) for row in range(10)]
    assert [reader.read(p) for p in places] == [Document(str(i), f"t{i}") for i in range(10)]
    assert reader.source(places[5]) == "x.parquet row 5"
    assert reader.read(places[1]).text == "t1"


def test_rows_in_order_decode_each_group_once(
    grouped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    original = pq.ParquetFile.read_row_group

    def counted(self: Any, group: int, **options: Any) -> Any:
        decoded.append(group)
        return original(self, group, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    reader = open_corpus(grouped)
    for location in reader.locations():
        reader.read(location)
    assert decoded == [0, 1, 2, 3]


def test_row_without_id_is_called_by_its_place(tmp_path: Path) -> None:
    reader = open_corpus(save(tmp_path / "x.parquet", {"text": ["a", "b"]}))
    assert [reader.read(p).id for p in reader.locations()] == ["x.parquet#0", "x.parquet#1"]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_other_string_types_are_text(tmp_path: Path, kind: Any) -> None:
    reader = open_corpus(save(tmp_path / "x.parquet", {"text": pa.array(["ä\x00"]).cast(kind)}))
    assert reader.read(Location("x.parquet", 0)).text == "ä\x00"


@pytest.mark.parametrize(
    ("options", "option"),
    [({"text_field": "body"}, "--text-field"), ({"id_field": "key"}, "--id-field")],
)
def test_missing_column_is_known_up_front(
    grouped: Path, options: dict[str, str], option: str
) -> None:
    with pytest.raises(CorpusError, match=f"x.parquet: .*found 'text', 'doc_id'.*{option}"):
        open_corpus(grouped, **options)


def test_null_text_and_null_id_are_document_errors(tmp_path: Path) -> None:
    columns = {"text": [None, "b"], "id": ["a", None]}
    reader = open_corpus(save(tmp_path / "x.parquet", columns))
    with pytest.raises(DocumentError, match="x.parquet row 0: .*found null.*--text-field"):
        reader.read(Location("x.parquet", 0))
    with pytest.raises(DocumentError, match="x.parquet row 1: .*found null.*--id-field"):
        reader.read(Location("x.parquet", 1))


def test_column_of_numbers_is_no_text(tmp_path: Path) -> None:
    reader = open_corpus(save(tmp_path / "x.parquet", {"text": [1]}))
    with pytest.raises(DocumentError, match="expected a string .* found a number"):
        reader.read(Location("x.parquet", 0))


def test_string_that_is_not_utf8_is_a_document_error(tmp_path: Path) -> None:
    text = pa.Array.from_buffers(pa.string(), 1, pa.array([b"a\xff"]).buffers())
    reader = open_corpus(save(tmp_path / "x.parquet", {"text": text}))
    with pytest.raises(DocumentError, match="row 0: .*byte 0xff at byte offset 1"):
        reader.read(Location("x.parquet", 0))


@pytest.mark.parametrize("content", [b"", b"PAR1 cut short", b"PAR1" + b"\xff" * 64 + b"PAR1"])
def test_damaged_file_is_a_corpus_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(content)
    with pytest.raises(CorpusError, match="x.parquet: expected a Parquet file, found a damaged"):
        open_corpus(path)


def test_damaged_row_group_is_a_document_error(tmp_path: Path) -> None:
    plain = {"compression": "none", "write_statistics": False, "write_page_checksum": True}
    path = save(tmp_path / "x.parquet", {"text": ["a" * 100]}, **plain)
    data = bytearray(path.read_bytes())
    data[data.index(b"aaaa") + 3] ^= 1
    path.write_bytes(data)
    reader = open_corpus(path)
    with pytest.raises(DocumentError, match="x.parquet row 0: .*damaged"):
        reader.read(Location("x.parquet", 0))


def test_row_beyond_the_end_is_a_document_error(grouped: Path) -> None:
    with pytest.raises(DocumentError, match="row 10: expected a row below 10"):
        open_corpus(grouped).read(Location("x.parquet", 10))


def test_pickling_leaves_the_row_group_behind(grouped: Path) -> None:
    reader = open_corpus(grouped)
    reader.read(Location("x.parquet", 0))
    data = pickle.dumps(reader)
    copy: CorpusReader = pickle.loads(data)
    assert b"t0" not in data
    assert copy.read(Location("x.parquet", 9)) == Document("9", "t9")
