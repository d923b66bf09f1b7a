"""One text or Markdown file."""

import os
from pathlib import Path

import pytest

from sift_index.errors import CorpusError, DocumentError
from sift_index.pipelines.corpus import Document, Location, open_corpus

from .conftest import Write


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.markdown", "A.TXT"])
def test_one_file_is_one_document(write: Write, name: str) -> None:
    reader = open_corpus(write(name, "one\r\ntwo\n"))
    assert list(reader.locations()) == [Location(name, 0)]
    assert reader.read(Location(name, 0)) == Document(name, "one\r\ntwo\n")
    assert reader.source(Location(name, 0)) == name


def test_byte_order_mark_is_dropped(write: Write) -> None:
    reader = open_corpus(write("a.txt", b"\xef\xbb\xbfhello"))
    assert reader.read(Location("a.txt", 0)).text == "hello"


def test_nul_and_empty_text_are_kept(write: Write) -> None:
    write("b.txt", "")
    reader = open_corpus(write("a.txt", b"a\x00b").parent)
    assert [reader.read(location).text for location in reader.locations()] == ["a\x00b", ""]


@pytest.mark.parametrize(("data", "offset"), [(b"caf\xe9 noir", 3), (b"\xef\xbb\xbfab\xe9", 5)])
def test_bad_utf8_names_byte_and_offset(write: Write, data: bytes, offset: int) -> None:
    reader = open_corpus(write("a.txt", data))
    with pytest.raises(DocumentError) as caught:
        reader.read(Location("a.txt", 0))
    message = str(caught.value)
    assert message.startswith("a.txt: ")
    assert f"byte 0xe9 at byte offset {offset}" in message
    assert "convert the file to UTF-8" in message


def test_file_that_vanished_is_a_document_error(write: Write) -> None:
    path = write("a.txt", "x")
    reader = open_corpus(path)
    path.unlink()
    with pytest.raises(DocumentError, match="a.txt: .*No such file"):
        reader.read(Location("a.txt", 0))


def test_forbidden_file_is_a_document_error(write: Write) -> None:
    path = write("a.txt", "x")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read every file")
    reader = open_corpus(path)
    with pytest.raises(DocumentError, match="a.txt: .*Permission denied.*permissions"):
        reader.read(Location("a.txt", 0))


def test_refused_read_is_a_document_error(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    reader = open_corpus(write("a.txt", "x"))
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(DocumentError, match="a.txt: .*Permission denied.*permissions"):
        reader.read(Location("a.txt", 0))


def test_unknown_suffix_lists_the_known_ones(write: Write) -> None:
    with pytest.raises(CorpusError, match=r"a\.pdf: .*\.txt.*\.parquet.*\.csv.*found.*'\.pdf'"):
        open_corpus(write("a.pdf", "x"))
