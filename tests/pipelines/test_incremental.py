"""A corpus that changed: only what is new is computed, and `prune` lets the rest leave."""

import json
import os
from pathlib import Path

import pytest

from sift_index.errors import CorpusError
from sift_index.formats.compaction import compact
from sift_index.formats.deletion import delete_documents
from sift_index.formats.failures import read_failures
from sift_index.formats.garbage import collect_garbage
from sift_index.formats.reader import IndexReader
from sift_index.formats.receipts import read_receipts
from sift_index.formats.store import IndexPaths
from sift_index.formats.writer import publish
from sift_index.pipelines.planner import Unit
from sift_index.pipelines.scanning import scan_corpus
from sift_index.pipelines.summary import BuildSummary
from sift_index.pipelines.worker import BuildWorker
from tests.pipelines.builds import identities, text, write_corpus
from tests.pipelines.test_kill import receipts_in


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    files = {f"{i:02}.txt": text(150 + 11 * i, i) for i in range(8)}
    return write_corpus(tmp_path / "corpus", files)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return tmp_path / "index"


def change_one_of_each(corpus: Path) -> None:
    """Change 01, add new, remove 02, rename 03 to moved."""
    write_corpus(corpus, {"01.txt": text(222, 99), "new.txt": text(180, 98)})
    os.unlink(corpus / "02.txt")
    os.rename(corpus / "03.txt", corpus / "moved.txt")


def computed(index: Path, before: set[str]) -> list[str]:
    """Keys of the units that were committed since."""
    found = read_receipts(IndexPaths(index))
    return [key for receipt in found if receipt.unit not in before for key in receipt.keys]


def names(index: Path) -> set[str]:
    return set(IndexReader.open(index).document_ids())


def key_of(index: Path, name: str, version: int | None = None) -> bytes:
    (key,) = IndexReader.open(index, version).document_keys(name)
    return key


def test_only_new_and_changed_texts_are_computed(inline, corpus, index) -> None:
    inline(corpus, index)
    units = {receipt.unit for receipt in read_receipts(IndexPaths(index))}
    change_one_of_each(corpus)
    again = inline(corpus, index)
    expected = {key_of(index, "01.txt").hex(), key_of(index, "new.txt").hex()}
    assert len(computed(index, units)) == 2 and set(computed(index, units)) == expected
    assert (again.new_keys, again.known_keys, again.indexed) == (2, 6, 8)
    assert key_of(index, "moved.txt") == key_of(index, "03.txt", 1)


def test_without_prune_what_is_gone_stays(inline, corpus, index) -> None:
    inline(corpus, index)
    change_one_of_each(corpus)
    again = inline(corpus, index)
    assert (again.pruned_documents, again.pruned_keys) == (0, 0)
    assert {"02.txt", "03.txt", "moved.txt"} < names(index)
    assert key_of(index, "01.txt", 1) in IndexReader.open(index)


@pytest.fixture
def pruned(inline, corpus, index) -> BuildSummary:
    inline(corpus, index)
    change_one_of_each(corpus)
    summary: BuildSummary = inline(corpus, index, prune=True)
    return summary


def test_prune_leaves_what_the_corpus_has(pruned, corpus, index) -> None:
    assert (pruned.version, pruned.published, pruned.new_keys) == (2, True, 2)
    assert names(index) == {path.name for path in corpus.iterdir()}
    # Documents 02 and 03 under these ids; the texts of 02 and of 01 as it was.
    assert (pruned.pruned_documents, pruned.pruned_keys) == (2, 2)
    reader = IndexReader.open(index)
    assert key_of(index, "02.txt", 1) not in reader and key_of(index, "01.txt", 1) not in reader
    assert key_of(index, "03.txt", 1) in reader
    assert all(reader.lookup(key) for name in names(index) for key in reader.document_keys(name))


def test_counts_of_a_pruned_version_are_those_of_its_rows(pruned, corpus, index) -> None:
    reader = IndexReader.open(index)
    tokens = sum(reader.token_counts(range(len(reader))))
    assert reader.manifest.counts.tokens == tokens == pruned.index_tokens
    assert (reader.manifest.counts.documents, reader.manifest.counts.keys) == (8, 8)
    assert reader.verify().ok


def test_pruning_twice_publishes_once(pruned, inline, corpus, index) -> None:
    before = identities(index)
    again = inline(corpus, index, prune=True)
    assert (again.published, again.pruned_documents, again.pruned_keys) == (False, 0, 0)
    assert identities(index) == before


def test_the_version_before_still_has_what_was_pruned(pruned, index) -> None:
    old = IndexReader.open(index, 1)
    assert all(old.lookup(key) for name in ("01.txt", "02.txt") for key in old.document_keys(name))


def test_compact_and_gc_take_what_was_pruned(pruned, index) -> None:
    paths = IndexPaths(index)
    size = sum(path.stat().st_size for path in paths.packs.iterdir())
    assert compact(paths) is not None
    collect_garbage(paths, 1, grace=0)
    reader = IndexReader.open(index)
    assert reader.verify().ok and reader.manifest.counts.keys == 8
    assert sum(path.stat().st_size for path in paths.packs.iterdir()) < size
    assert sum(pack.rows for pack in reader.manifest.packs) == 8


def test_a_pruned_text_that_comes_back_is_indexed_again(pruned, inline, corpus, index) -> None:
    write_corpus(corpus, {"02.txt": text(150 + 11 * 2, 2)})
    key = key_of(index, "02.txt", 1)
    again = inline(corpus, index)
    assert again.indexed == 9 and key_of(index, "02.txt") == key
    assert IndexReader.open(index).lookup(key) and IndexReader.open(index).verify().ok


def test_a_text_that_another_document_has_stays(inline, corpus, index) -> None:
    write_corpus(corpus, {"copy.txt": (corpus / "02.txt").read_bytes()})
    inline(corpus, index)
    os.unlink(corpus / "02.txt")
    found = inline(corpus, index, prune=True)
    assert (found.pruned_documents, found.pruned_keys, found.published) == (1, 0, True)
    assert key_of(index, "copy.txt") == key_of(index, "02.txt", 1)


def test_texts_left_by_earlier_changes_leave_with_the_next_prune(inline, corpus, index) -> None:
    inline(corpus, index)
    old = key_of(index, "01.txt")
    write_corpus(corpus, {"01.txt": text(222, 99)})
    inline(corpus, index)
    assert old in IndexReader.open(index)
    found = inline(corpus, index, prune=True)
    assert (found.published, found.pruned_documents, found.pruned_keys) == (True, 0, 1)
    assert old not in IndexReader.open(index)


def test_a_document_whose_text_is_gone_leaves(inline, corpus, index) -> None:
    inline(corpus, index)
    write_corpus(corpus, {"01.txt": " \n"})
    found = inline(corpus, index, prune=True)
    assert (found.empty, found.pruned_documents, found.pruned_keys) == (1, 1, 1)
    assert "01.txt" not in names(index)


def test_a_document_that_fails_for_its_length_stays(inline, corpus, index) -> None:
    inline(corpus, index, max_tokens=300, long="error")
    key = key_of(index, "01.txt")
    write_corpus(corpus, {"01.txt": text(400, 99)})
    os.unlink(corpus / "02.txt")
    found = inline(corpus, index, max_tokens=300, long="error", prune=True)
    assert len(found.failed) == 1 and found.pruned_documents == 1
    assert key_of(index, "01.txt") == key and "02.txt" not in names(index)


def test_a_document_that_fails_while_it_is_computed_stays(
    inline, corpus, index, monkeypatch
) -> None:
    inline(corpus, index)
    key = key_of(index, "01.txt")
    write_corpus(corpus, {"01.txt": text(400, 99)})
    os.unlink(corpus / "02.txt")

    def scan_then_lose(*arguments):
        catalogue = scan_corpus(*arguments)
        os.unlink(corpus / "01.txt")
        return catalogue

    monkeypatch.setattr("sift_index.pipelines.build.scan_corpus", scan_then_lose)
    found = inline(corpus, index, prune=True)
    assert len(found.failed) == 1 and found.pruned_documents == 1
    assert key_of(index, "01.txt") == key and "02.txt" not in names(index)


@pytest.mark.parametrize("kind", ["bytes", "line", "link", "folder"])
def test_a_corpus_that_was_not_seen_whole_prunes_nothing(inline, corpus, index, kind) -> None:
    inline(corpus, index)
    before = identities(index)
    os.unlink(corpus / "02.txt")
    hidden = corpus / "hidden"
    if kind == "bytes":
        write_corpus(corpus, {"bad.txt": b"caf\xe9"})
    elif kind == "line":
        write_corpus(corpus, {"bad.jsonl": json.dumps({"id": "a", "text": "b"}) + "\n{broken\n"})
    elif kind == "link":
        (corpus / "link.txt").symlink_to("nowhere.txt")
    else:
        if os.geteuid() == 0:
            pytest.skip("root enters every folder")
        hidden.mkdir()
        hidden.chmod(0)
    try:
        with pytest.raises(CorpusError, match=r"--prune: .*read as a whole.*without --prune"):
            inline(corpus, index, prune=True)
    finally:
        if hidden.exists():
            hidden.chmod(0o700)
    assert identities(index) == before and "02.txt" in names(index)


def test_prune_leaves_out_what_an_interrupted_build_had_committed(
    inline, corpus, index, monkeypatch
) -> None:
    run = BuildWorker.run_unit

    def one_unit(self, unit):
        if receipts_in(index):
            raise KeyboardInterrupt
        return run(self, unit)

    monkeypatch.setattr(BuildWorker, "run_unit", one_unit)
    with pytest.raises(KeyboardInterrupt):
        inline(corpus, index)
    monkeypatch.setattr(BuildWorker, "run_unit", run)
    (receipt,) = read_receipts(IndexPaths(index))
    os.unlink(corpus / "00.txt")  # the shortest, so it is in the first unit
    found = inline(corpus, index, prune=True)
    assert (found.version, found.indexed, found.pruned_documents, found.pruned_keys) == (1, 7, 0, 0)
    reader = IndexReader.open(index)
    gone = [key for key in receipt.keys if bytes.fromhex(key) not in reader]
    assert (len(reader), len(gone), reader.verify().ok) == (7, 1, True)
    assert reader.manifest.counts.tokens == sum(reader.token_counts(range(7)))
    assert not inline(corpus, index, prune=True).published


def test_the_example_of_what_cannot_be_read_is_one(inline, corpus, index) -> None:
    write_corpus(corpus, {"00.txt": text(400, 99), "bad.txt": b"caf\xe9"})
    with pytest.raises(CorpusError, match=r"found 1 places that cannot, such as bad\.txt"):
        inline(corpus, index, max_tokens=300, long="error", prune=True)


def test_records_of_failed_documents_leave_with_the_corpus_if_pruned(inline, corpus, index) -> None:
    write_corpus(corpus, {"bad.txt": b"caf\xe9"})
    inline(corpus, index)
    os.unlink(corpus / "bad.txt")
    inline(corpus, index)
    assert [record.source for record in read_failures(IndexPaths(index))] == ["bad.txt"]
    inline(corpus, index, prune=True)
    assert read_failures(IndexPaths(index)) == []


def test_a_corpus_without_a_document_prunes_nothing(inline, corpus, index, tmp_path) -> None:
    inline(corpus, index)
    blank = write_corpus(tmp_path / "blank", {"a.txt": "", "b.txt": "\n"})
    with pytest.raises(CorpusError, match="found none among 2"):
        inline(blank, index, prune=True)
    nothing = write_corpus(tmp_path / "nothing", {"x.jsonl": "\n"})
    with pytest.raises(CorpusError, match="found none"):
        inline(nothing, index, prune=True)
    assert IndexReader.open(index).manifest.version == 1


def test_the_first_build_has_nothing_to_prune(inline, corpus, index) -> None:
    found = inline(corpus, index, prune=True)
    assert (found.version, found.indexed, found.pruned_documents) == (1, 8, 0)


def test_what_another_writer_added_meanwhile_is_not_pruned(
    inline, corpus, index, tmp_path, monkeypatch
) -> None:
    inline(corpus, index)
    os.unlink(corpus / "02.txt")
    other = write_corpus(tmp_path / "other", {"theirs.txt": text(200, 55)})

    def late(*arguments, **options):
        monkeypatch.setattr("sift_index.pipelines.publishing.publish", publish)
        inline(other, index)
        delete_documents(IndexPaths(index), ["04.txt"])
        return publish(*arguments, **options)

    monkeypatch.setattr("sift_index.pipelines.publishing.publish", late)
    found = inline(corpus, index, prune=True)
    assert (found.published, found.pruned_documents, found.version) == (True, 1, 4)
    assert names(index) == {path.name for path in corpus.iterdir()} | {"theirs.txt"}
    assert IndexReader.open(index).lookup(key_of(index, "theirs.txt"))
    assert IndexReader.open(index).verify().ok


def test_a_split_document_that_gets_shorter_loses_its_last_piece(inline, tmp_path, index) -> None:
    content = text(500, 1)
    corpus = write_corpus(tmp_path / "corpus", {"long.txt": content, "b.txt": text(90, 2)})
    inline(corpus, index, max_tokens=200)
    before = IndexReader.open(index).document_keys("long.txt")
    write_corpus(corpus, {"long.txt": content[:300]})
    found = inline(corpus, index, max_tokens=200, prune=True)
    after = IndexReader.open(index).document_keys("long.txt")
    assert (len(before), len(after), found.new_keys) == (3, 2, 1) and after[0] == before[0]
    assert (found.pruned_documents, found.pruned_keys) == (0, 2)


def test_the_summary_says_what_was_pruned(pruned) -> None:
    assert "2 documents that the corpus does not have any more, 2 keys" in "\n".join(pruned.lines())
    values = json.loads(json.dumps(pruned.to_json()))
    assert (values["pruned_documents"], values["pruned_keys"]) == (2, 2)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another corpus, of several units, that is built into the same index."""
    return write_corpus(tmp_path / "other", {f"b{i}.txt": text(500 + i, 50 + i) for i in range(4)})


def after_the_first_unit(monkeypatch, action) -> None:
    """Let something happen while a build is at work: once, when it has committed a unit."""
    run, done = BuildWorker.run_unit, list[Unit]()

    def run_unit(self, unit):
        outcome = run(self, unit)
        if not done:
            done.append(unit)
            action()
        return outcome

    monkeypatch.setattr(BuildWorker, "run_unit", run_unit)


@pytest.mark.parametrize("published", ["nothing", "corpus", "theirs"])
def test_prune_leaves_alone_what_another_build_has_committed(
    inline, corpus, index, other, monkeypatch, published
) -> None:
    """Whether no version has their first unit yet, or a build that was faster published it."""
    if published != "nothing":
        inline(corpus, index)
        os.unlink(corpus / "02.txt")
    pruned: list[BuildSummary] = []

    def prune() -> None:
        if published == "theirs":
            inline(write_corpus(corpus, {"new.txt": text(180, 98)}), index)
        pruned.append(inline(corpus, index, prune=True))

    after_the_first_unit(monkeypatch, prune)
    found = inline(other, index)
    (then,) = pruned
    gone = 0 if published == "nothing" else 1
    assert (then.pruned_documents, then.pruned_keys, found.indexed) == (gone, gone, 4)
    reader = IndexReader.open(index, then.version)
    assert sum(key_of(index, path.name) in reader for path in other.iterdir()) == 1
    assert all(IndexReader.open(index).lookup(key_of(index, p.name)) for p in other.iterdir())
    assert IndexReader.open(index).verify().ok and names(index) >= set(os.listdir(other))


def test_prune_leaves_the_records_of_another_build_alone(
    inline, corpus, index, other, monkeypatch
) -> None:
    inline(corpus, index)
    write_corpus(other, {"bad.txt": b"caf\xe9"})
    meanwhile: list[str] = []

    def prune() -> None:
        inline(corpus, index, prune=True)
        meanwhile.extend(record.source for record in read_failures(IndexPaths(index)))

    after_the_first_unit(monkeypatch, prune)
    inline(other, index)
    assert meanwhile == ["bad.txt"]


def test_what_a_prune_had_to_leave_goes_with_the_next_one(
    inline, corpus, index, other, monkeypatch
) -> None:
    """The other build dies: what it committed belongs to no document, and to nobody at work."""

    def prune_and_die() -> None:
        inline(corpus, index, prune=True)
        raise KeyboardInterrupt

    after_the_first_unit(monkeypatch, prune_and_die)
    with pytest.raises(KeyboardInterrupt):
        inline(other, index)
    kept = len(IndexReader.open(index))
    found = inline(corpus, index, prune=True)
    assert (kept, found.pruned_keys, len(IndexReader.open(index))) == (9, 1, 8)
