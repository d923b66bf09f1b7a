"""Folders of mixed files."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sift_index.errors import CorpusError, DocumentError
from sift_index.pipelines.corpus import (
    NOT_LISTED,
    CorpusReader,
    Document,
    IgnoredFiles,
    Location,
    ignored_files,
    open_corpus,
)

from .conftest import Write


@pytest.fixture
def mixed(write: Write, tmp_path: Path) -> Path:
    """One document of every kind, with things to leave out beside them."""
    write("mixed/z.txt", "z")
    write("mixed/B.MD", "b")
    write("mixed/notes/a.md", "a")
    write("mixed/notes/x.jsonl", [{"text": "j0"}, {"text": "j1"}])
    write("mixed/.hidden.txt", "no")
    write("mixed/.git/a.txt", "no")
    write("mixed/image.png", b"\x89")
    write("mixed/data/table.csv", "text\nx\n")
    pq.write_table(pa.table({"text": ["p"]}), tmp_path / "mixed/data/x.parquet")
    return tmp_path / "mixed"


def test_mixed_folder_is_read_in_order(mixed: Path) -> None:
    reader = open_corpus(mixed)
    assert [reader.read(location) for location in reader.locations()] == [
        Document("B.MD", "b"),
        Document("z.txt", "z"),
        Document("data/x.parquet#0", "p"),
        Document("notes/a.md", "a"),
        Document("notes/x.jsonl:1", "j0"),
        Document("notes/x.jsonl:2", "j1"),
    ]
    assert list(reader.locations()) == list(open_corpus(str(mixed)).locations())


def test_a_folder_may_be_left_out(mixed: Path, write: Write) -> None:
    every = [*open_corpus(mixed).locations()]
    write("mixed/notes/x.sift/probes/probe-1.txt", "no")
    inside = mixed / "notes/x.sift"
    assert [*open_corpus(mixed, without=inside).locations()] == every
    assert ignored_files(open_corpus(mixed, without=inside)).count == 2
    (mixed.parent / "link").symlink_to(mixed)
    assert [*open_corpus(mixed.parent / "link", without=inside).locations()] == every
    for elsewhere in (mixed, mixed.parent, mixed.parent / "mixed.sift", mixed / "notes/x"):
        assert len([*open_corpus(mixed, without=elsewhere).locations()]) == len(every) + 1


def test_sources_name_file_line_and_row(mixed: Path) -> None:
    reader = open_corpus(mixed)
    assert [reader.source(location) for location in reader.locations()][2:] == [
        "data/x.parquet row 0",
        "notes/a.md",
        "notes/x.jsonl:1",
        "notes/x.jsonl:2",
    ]


def test_other_files_are_counted(mixed: Path) -> None:
    assert ignored_files(open_corpus(mixed)) == IgnoredFiles(2, "image.png")
    assert ignored_files(open_corpus(mixed / "z.txt")) == IgnoredFiles(0, "")


def test_relative_path_works_from_another_folder(
    mixed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(mixed.parent)
    reader = open_corpus("mixed")
    monkeypatch.chdir("/")
    assert reader.read(Location("z.txt", 0)).text == "z"


def test_pickled_reader_reads_the_same(mixed: Path) -> None:
    reader = open_corpus(mixed)
    documents = [reader.read(location) for location in reader.locations()]
    copy: CorpusReader = pickle.loads(pickle.dumps(reader))
    assert [copy.read(location) for location in copy.locations()] == documents


def test_links_do_not_leave_the_folder(write: Write, tmp_path: Path) -> None:
    secret = write("outside/secret.txt", "secret")
    inside = write("corpus/a.txt", "a")
    (inside.parent / "b.txt").symlink_to(secret)
    (inside.parent / "c.txt").symlink_to(inside)
    (inside.parent / "folder").symlink_to(secret.parent)
    (inside.parent / "loop").symlink_to(inside.parent)
    reader = open_corpus(inside.parent)
    assert [location.file for location in reader.locations()] == ["a.txt", "c.txt"]
    assert ignored_files(reader) == IgnoredFiles(3, "b.txt")


def test_broken_link_is_a_failed_document(write: Write) -> None:
    folder = write("corpus/a.txt", "a").parent
    (folder / "gone.txt").symlink_to(folder / "nowhere")
    (folder / "self.md").symlink_to(folder / "self.md")
    reader = open_corpus(folder)
    assert [location.file for location in reader.locations()] == ["a.txt", "gone.txt", "self.md"]
    with pytest.raises(DocumentError, match="gone.txt: .*No such file"):
        reader.read(Location("gone.txt", 0))


def test_pipes_are_not_opened(write: Write) -> None:
    folder = write("corpus/a.txt", "a").parent
    os.mkfifo(folder / "pipe.txt")
    reader = open_corpus(folder)
    assert [location.file for location in reader.locations()] == ["a.txt"]
    with pytest.raises(CorpusError, match="pipe.txt: expected a folder or a regular file"):
        open_corpus(folder / "pipe.txt")


def test_damaged_parquet_is_one_failed_source(write: Write) -> None:
    write("corpus/bad.parquet", "no parquet")
    folder = write("corpus/c.txt", "c").parent
    reader = open_corpus(folder)
    bad = Location("bad.parquet", NOT_LISTED)
    assert list(reader.locations()) == [bad, Location("c.txt", 0)]
    assert reader.source(bad) == "bad.parquet"
    with pytest.raises(DocumentError, match="^bad.parquet: expected a Parquet file"):
        reader.read(bad)
    assert reader.read(Location("c.txt", 0)).text == "c"


def test_parquet_without_the_column_is_one_failed_source(mixed: Path) -> None:
    pq.write_table(pa.table({"body": ["p"]}), mixed / "a.parquet")
    reader = open_corpus(mixed)
    bad = Location("a.parquet", NOT_LISTED)
    assert bad in list(reader.locations())
    with pytest.raises(DocumentError, match="a.parquet: .*found 'body'.*--text-field"):
        reader.read(bad)


def test_source_repaired_since_the_listing_asks_for_a_new_run(mixed: Path) -> None:
    with pytest.raises(DocumentError, match="run the command again"):
        open_corpus(mixed).read(Location("notes/x.jsonl", NOT_LISTED))


def refuse_scan(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Refuse to open one folder, as permissions do (which root, in containers, ignores)."""

    def guard(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def scan(path: Any) -> Any:
            if Path(path) == folder:
                raise PermissionError(13, "Permission denied", str(path))
            return original(path)

        return scan

    monkeypatch.setattr(os, "scandir", guard(os.scandir))
    monkeypatch.setattr(os, "listdir", guard(os.listdir))


def test_closed_folder_is_one_failed_source(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_scan(monkeypatch, mixed / "notes")
    reader = open_corpus(mixed)
    *rest, closed = reader.locations()
    assert [location.file for location in rest] == ["B.MD", "z.txt", "data/x.parquet"]
    with pytest.raises(DocumentError, match="^notes: .*Permission denied"):
        reader.read(closed)


def test_closed_root_is_a_corpus_error(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_scan(monkeypatch, mixed)
    with pytest.raises(CorpusError, match="readable folder.*permissions"):
        open_corpus(mixed)


def test_folder_without_readable_files_says_what_is_read(write: Write, tmp_path: Path) -> None:
    write("images/a.png", "x")
    with pytest.raises(CorpusError, match=r"\.txt, .*\.jsonl, .*\.parquet.*1 other.*a\.png"):
        open_corpus(tmp_path / "images")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match="found none and 0 other files"):
        open_corpus(tmp_path / "empty")


def test_undecodable_file_name_is_a_failed_document(write: Write) -> None:
    folder = write("corpus/a.txt", "a").parent
    try:
        (folder / os.fsdecode(b"caf\xe9.txt")).write_text("x")
    except OSError:
        pytest.skip("this file system accepts UTF-8 names only")
    reader = open_corpus(folder)
    bad = list(reader.locations())[1]
    assert reader.source(bad) == "caf\\udce9.txt"
    with pytest.raises(DocumentError, match="lone surrogate"):
        reader.read(bad)


@pytest.mark.parametrize("path", ["nowhere/at/all", "squad", "hf://datasets/squad", ""])
def test_path_that_does_not_exist_is_never_looked_up(path: str) -> None:
    with pytest.raises(CorpusError, match="found no such file or folder.*nothing is downloaded"):
        open_corpus(path)
