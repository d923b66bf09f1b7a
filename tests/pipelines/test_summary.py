"""The summary adds up: every document is counted once, by what became of it."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sift_index.formats.failures import FailedDocument, read_failures, record_failure
from sift_index.formats.reader import IndexReader
from sift_index.formats.store import IndexPaths
from sift_index.pipelines.scanning import scan_corpus
from sift_index.pipelines.summary import BuildSummary
from tests.pipelines.builds import text, write_corpus

LONGEST = 200


def total(summary: BuildSummary) -> int:
    counted = summary.indexed + summary.duplicates + summary.empty + summary.too_long
    return counted + len(summary.failed)


def failures(summary: BuildSummary) -> dict[str, str]:
    found = {failure.source: failure.reason for failure in summary.failed}
    assert len(found) == len(summary.failed)
    return found


def nasty(folder: Path) -> Path:
    """Everything that can be wrong with a corpus, at once."""
    same, twice = text(120, 5), text(90, 6)
    lines = [
        {"id": "one", "text": text(80, 1)},
        {"id": "one", "text": twice},  # an id again with another text
        {"id": "two", "text": text(80, 2)},
        {"id": "two", "text": text(80, 2)},  # the same again
        {"id": "three", "text": same},
        {"id": "four", "text": 4},
        {"id": "five", "text": " \n"},
    ]
    return write_corpus(
        folder,
        {
            "a.txt": same,
            "copies/b.txt": same,
            "copies/c.md": same,
            "empty.txt": "",
            "blank.md": "\n\n ",
            "latin.txt": b"caf\xe9 au lait",
            "long.txt": text(450, 3),
            "fits.txt": text(LONGEST - 2, 4),
            "lines.jsonl": "\n".join(json.dumps(line) for line in lines) + "\n{broken\n",
            "photo.jpg": b"\xff\xd8",
            "table.csv": "a,b\n",
        },
    )


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return nasty(tmp_path / "corpus")


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return tmp_path / "index"


def test_a_nasty_corpus_adds_up(inline, corpus, index) -> None:
    found = inline(corpus, index, max_tokens=LONGEST, long="split")
    assert found.documents == total(found) == 16
    assert (found.empty, found.too_long, found.split) == (3, 0, 1)
    assert found.duplicates == 4  # b.txt, c.md, three, and two's repeat
    assert found.indexed == 5  # a.txt, fits.txt, long.txt, one, two
    assert set(failures(found)) == {
        "latin.txt",
        "lines.jsonl:2",
        "lines.jsonl:6",
        "lines.jsonl:8",
    }
    assert (found.ignored_files, found.ignored_example) == (2, "photo.jpg")
    assert found.keys == found.new_keys == 7  # long.txt has three pieces


@pytest.mark.parametrize(("long", "too_long", "failed"), [("skip", 1, 4), ("error", 0, 5)])
def test_over_long_documents_are_counted_by_the_choice(
    inline, corpus, index, long, too_long, failed
) -> None:
    found = inline(corpus, index, max_tokens=LONGEST, long=long)
    assert found.documents == total(found) == 16
    assert (found.too_long, len(found.failed), found.split) == (too_long, failed, 0)
    if long == "error":
        assert "452 tokens, at most 200" in failures(found)["long.txt"]


def test_the_key_table_holds_what_the_summary_says(inline, corpus, index) -> None:
    found = inline(corpus, index, max_tokens=LONGEST)
    reader = IndexReader.open(index)
    ids = {"a.txt", "copies/b.txt", "copies/c.md", "three", "fits.txt", "long.txt", "one", "two"}
    assert set(reader.document_ids()) == ids
    shared = {reader.document_keys(name) for name in ("a.txt", "copies/b.txt", "three")}
    assert len(shared) == 1
    pieces = [reader.lookup(key) for key in reader.document_keys("long.txt")]
    assert [piece.tokens for piece in pieces if piece] == [200, 200, 52]
    assert found.index_tokens == reader.manifest.counts.tokens == found.new_tokens
    files = [*index.glob("packs/*.arrow"), *index.glob("keys-*.arrow")]
    assert found.index_bytes == sum(path.stat().st_size for path in files)
    # 2 layers x 2 KV heads x 16 dimensions, K and V, 2 bytes each
    assert found.kv_bytes == found.index_tokens * 2 * 2 * 16 * 2 * 2


def test_a_second_run_counts_the_same_documents(inline, corpus, index) -> None:
    first = inline(corpus, index, max_tokens=LONGEST)
    again = inline(corpus, index, max_tokens=LONGEST)
    assert (again.documents, again.indexed, again.duplicates, again.empty) == (
        first.documents,
        first.indexed,
        first.duplicates,
        first.empty,
    )
    assert again.failed == first.failed and total(again) == again.documents
    assert (again.new_keys, again.known_keys, again.resumed_keys) == (0, first.new_keys, 0)


def test_failures_are_recorded_until_they_are_repaired(inline, corpus, index) -> None:
    found = inline(corpus, index, max_tokens=LONGEST)
    records = {record.source: record.reason for record in read_failures(IndexPaths(index))}
    assert records == failures(found)
    assert "UTF-8" in records["latin.txt"] and "another text" in records["lines.jsonl:2"]
    lines = (corpus / "lines.jsonl").read_text().splitlines()
    lines[1] = json.dumps({"id": "one again", "text": text(90, 6)})
    lines[5] = json.dumps({"id": "four", "text": text(120, 5)})  # a duplicate of a.txt
    lines[7] = json.dumps({"id": "eight", "text": ""})
    write_corpus(corpus, {"latin.txt": "café au lait", "lines.jsonl": "\n".join(lines)})
    repaired = inline(corpus, index, max_tokens=LONGEST)
    assert repaired.failed == () and total(repaired) == repaired.documents
    assert (repaired.new_keys, repaired.version) == (2, 2)
    assert read_failures(IndexPaths(index)) == []


def test_one_repaired_document_leaves_the_other_records(inline, corpus, index) -> None:
    inline(corpus, index, max_tokens=LONGEST)
    write_corpus(corpus, {"latin.txt": "café"})
    inline(corpus, index, max_tokens=LONGEST)
    left = {record.source for record in read_failures(IndexPaths(index))}
    assert left == {"lines.jsonl:2", "lines.jsonl:6", "lines.jsonl:8"}


def test_records_of_another_corpus_stay(inline, corpus, index, tmp_path) -> None:
    inline(corpus, index, max_tokens=LONGEST)
    other = write_corpus(tmp_path / "other", {"x.txt": text(60, 60), "y.txt": b"\xff"})
    inline(other, index, max_tokens=LONGEST)
    sources = {record.source for record in read_failures(IndexPaths(index))}
    assert {"latin.txt", "lines.jsonl:6", "y.txt"} <= sources


def test_records_of_what_could_not_be_opened_go_once_it_can(inline, corpus, index, between) -> None:
    lines = "".join(json.dumps({"text": text(60 + n, n)}) + "\n" for n in range(3))
    write_corpus(corpus, {"table.parquet": b"damaged", "sub/x.jsonl": lines})
    between((corpus / "sub/x.jsonl").unlink)
    inline(corpus, index, max_tokens=LONGEST)
    (corpus / "table.parquet").unlink()
    pq.write_table(pa.table({"text": [text(60, 9)]}), corpus / "table.parquet")
    write_corpus(corpus, {"sub/x.jsonl": lines.partition("\n")[0]})
    paths = IndexPaths(index)
    for source in ("sub", "sub/x.jsonl:3", "other.jsonl:3"):  # a folder that was closed, and lines
        record_failure(paths, FailedDocument(source, "of an earlier build"))
    earlier = {record.source for record in read_failures(paths)}
    assert {"table.parquet", "sub/x.jsonl byte 0"} < earlier
    between(lambda: None)
    found = inline(corpus, index, max_tokens=LONGEST)
    left = {record.source for record in read_failures(paths)}
    assert left == {*failures(found), "other.jsonl:3"}


@pytest.fixture
def between(monkeypatch):
    """Do something after the corpus was planned and before workers read it."""

    def _between(action) -> None:
        def scan_then_act(*arguments):
            catalogue = scan_corpus(*arguments)
            action()
            return catalogue

        monkeypatch.setattr("sift_index.pipelines.build.scan_corpus", scan_then_act)

    return _between


def test_documents_that_change_during_the_build_fail_once_each(
    inline, corpus, index, between
) -> None:
    def change() -> None:
        write_corpus(corpus, {"long.txt": text(450, 33), "a.txt": "other"})
        os.unlink(corpus / "fits.txt")

    between(change)
    found = inline(corpus, index, max_tokens=LONGEST)
    assert total(found) == found.documents == 16
    reasons = failures(found)
    assert "changed while the build ran" in reasons["long.txt"]  # one failure for three pieces
    assert "changed while the build ran" in reasons["a.txt"]
    assert "No such file" in reasons["fits.txt"]
    for name in ("copies/b.txt", "copies/c.md", "lines.jsonl:5"):
        assert "shares text with another document" in reasons[name]
    assert (found.indexed, found.duplicates) == (2, 1)
    assert set(IndexReader.open(index).document_ids()) == {"one", "two"}


def test_what_failed_for_a_moment_is_indexed_by_the_next_run(
    inline, corpus, index, between
) -> None:
    kept = {name: (corpus / name).read_bytes() for name in ("a.txt", "fits.txt")}

    def remove() -> None:
        for name in kept:
            os.unlink(corpus / name)

    between(remove)
    first = inline(corpus, index, max_tokens=LONGEST)
    assert kept.keys() <= failures(first).keys()
    between(lambda: write_corpus(corpus, kept))
    write_corpus(corpus, kept)
    second = inline(corpus, index, max_tokens=LONGEST)
    assert total(second) == second.documents and not kept.keys() & failures(second).keys()
    assert (second.new_keys, second.indexed, second.duplicates) == (2, 5, 4)
    sources = {record.source for record in read_failures(IndexPaths(index))}
    assert sources == failures(second).keys()


def test_a_corpus_of_empty_texts_publishes_nothing_and_says_so(inline, tmp_path, index) -> None:
    found = inline(write_corpus(tmp_path / "bad", {"a.txt": " ", "b.txt": ""}), index)
    assert (found.version, found.published, found.documents, total(found)) == (None, False, 2, 2)
    assert (found.empty, read_failures(IndexPaths(index))) == (2, [])


def test_the_lines_and_the_json_say_the_same(inline, corpus, index) -> None:
    found = inline(corpus, index, max_tokens=LONGEST)
    lines = "\n".join(found.lines())
    assert "16: 5 indexed, 4 duplicates, 3 empty, 0 too long, 4 failed" in lines
    rate = f"{found.seconds:.1f} s = {found.tokens_per_second:,.0f} tokens/s, with reading"
    assert f"whole run   {rate}" in lines and lines.count("tokens/s") == 1
    assert "2 files, such as photo.jpg" in lines and "version 1, published" in lines
    values = json.loads(json.dumps(found.to_json()))
    assert values["documents"] == 16
    assert values["failed"][0].keys() == {"source", "reason"}
