"""Resuming: nothing that is committed is computed again, whatever happened in between."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_index.errors import BuildError, CommitConflictError, FingerprintMismatchError
from sift_index.formats.compaction import compact
from sift_index.formats.deletion import delete_documents
from sift_index.formats.fileinfo import PackInfo
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.garbage import collect_garbage
from sift_index.formats.identity import document_key
from sift_index.formats.manifest import read_manifest
from sift_index.formats.reader import IndexReader
from sift_index.formats.receipts import Receipt, read_receipts
from sift_index.formats.store import IndexPaths, require_sizes
from sift_index.formats.writer import publish
from sift_index.pipelines.corpus import Location
from sift_index.pipelines.documents import Piece
from sift_index.pipelines.planner import Unit, cut_units
from sift_index.pipelines.resume import Held, read_held, units_left
from tests.pipelines.builds import catalogue_of_pieces, hashes, identities, text, write_corpus

DIGEST = "ab" * 16
BUDGET = 100


def pieces(count: int) -> list[Piece]:
    return [Piece(document_key([n]), 20 + n, Location(f"{n:03}.txt", 0), 0) for n in range(count)]


def receipt_of(unit: Unit) -> Receipt:
    keys = tuple(sorted(piece.key.hex() for piece in unit.pieces))
    pack = PackInfo(f"{unit.id}-0.arrow", 1, "0" * 64, len(keys))
    return Receipt(unit.id, DIGEST, pack, keys, unit.tokens)


def left(wanted: list[Piece], *committed: Unit) -> list[Unit]:
    held = Held(None, tuple(receipt_of(unit) for unit in committed))
    return list(units_left(catalogue_of_pieces(wanted), held, BUDGET, DIGEST))


def plan(wanted: list[Piece]) -> list[Unit]:
    return list(cut_units(catalogue_of_pieces(wanted), BUDGET, DIGEST))


def planned_pieces(units: list[Unit]) -> set[Piece]:
    found = [piece for unit in units for piece in unit.pieces]
    assert len(found) == len(set(found))
    return set(found)


@given(st.lists(st.integers(1, 200), max_size=50), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_committed_units_are_left_out_and_the_others_stay_as_planned(lengths, chance) -> None:
    wanted = [Piece(document_key([n]), t, Location("", n), 0) for n, t in enumerate(lengths)]
    units = plan(wanted)
    done = [unit for unit in units if chance.random() < 0.5]
    assert left(wanted, *done) == [unit for unit in units if unit not in done]


def test_a_finished_plan_leaves_nothing() -> None:
    assert left(pieces(20), *plan(pieces(20))) == []


@pytest.mark.parametrize("lost", range(20))
def test_when_a_document_is_gone_no_committed_one_is_planned_again(lost: int) -> None:
    done = [unit for number, unit in enumerate(plan(pieces(20))) if number % 3 != 1]
    wanted = [piece for piece in pieces(20) if piece.location.file != f"{lost:03}.txt"]
    committed = planned_pieces(done)
    assert planned_pieces(left(wanted, *done)) == set(wanted) - committed


@pytest.mark.parametrize("number", range(3))
def test_a_split_unit_does_not_shift_the_committed_ones_behind_it(number: int) -> None:
    units = plan(pieces(20))
    first, second = units[number].halves(DIGEST)
    others = [unit for unit in units[:-1] if unit is not units[number]]
    expected = set(second.pieces) | set(units[-1].pieces)
    assert planned_pieces(left(pieces(20), first, *others)) == expected


def forget(index: Path, receipts: int, version: int = 1) -> list[Receipt]:
    """Leave a folder as an interrupted build would: no version, some receipts missing."""
    IndexPaths(index).manifest_path(version).unlink()
    IndexPaths(index).keytable_path(version).unlink()
    found = read_receipts(IndexPaths(index))
    lost, kept = found[:receipts], found[receipts:]
    for receipt in lost:
        IndexPaths(index).receipt_path(receipt.unit).unlink()
    return kept


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(
        tmp_path / "corpus", {f"{i:02}.txt": text(150 + 11 * i, i) for i in range(16)}
    )


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return tmp_path / "index"


def test_a_finished_build_run_again_computes_nothing(inline, corpus, index) -> None:
    first = inline(corpus, index)
    before = identities(index)
    again = inline(corpus, index)
    assert (again.new_keys, again.units, again.published, again.version) == (0, 0, False, 1)
    assert again.known_keys == again.keys == first.new_keys == 16
    assert again.indexed == first.indexed == 16
    assert identities(index) == before


@pytest.mark.parametrize("lost", [1, 3, 99])
def test_only_units_without_a_receipt_are_computed(inline, corpus, index, lost) -> None:
    first = inline(corpus, index)
    whole = hashes(index)
    kept = forget(index, lost)
    before = identities(index)
    again = inline(corpus, index)
    assert again.units == first.units - len(kept)
    assert again.resumed_keys == sum(len(receipt.keys) for receipt in kept)
    assert again.new_keys + again.resumed_keys == 16 and again.published
    assert hashes(index) == whole
    assert before.items() <= identities(index).items()
    assert IndexReader.open(index).verify().ok


def test_without_a_manifest_everything_committed_is_published_again(inline, corpus, index) -> None:
    inline(corpus, index)
    whole = hashes(index)
    IndexPaths(index).manifest_path(1).unlink()  # killed between the key table and the manifest
    again = inline(corpus, index)
    assert (again.new_keys, again.resumed_keys, again.published) == (0, 16, True)
    assert hashes(index) == whole


def test_a_grown_corpus_is_a_new_version_beside_the_old_one(inline, corpus, index) -> None:
    inline(corpus, index)
    before = identities(index)
    write_corpus(corpus, {"05b.txt": text(321, 77), "new.txt": text(400, 78)})
    grown = inline(corpus, index)
    assert (grown.version, grown.new_keys, grown.known_keys, grown.indexed) == (2, 2, 16, 18)
    assert before.items() <= identities(index).items()
    old, new = IndexReader.open(index, 1), IndexReader.open(index)
    assert len(list(old.document_ids())) == len(old) == 16
    assert {*old.document_ids(), "05b.txt", "new.txt"} == set(new.document_ids())
    for name in new.document_ids():
        assert all(new.lookup(key) for key in new.document_keys(name))
    assert new.verify().ok


def test_a_new_id_for_a_known_text_is_published_without_work(inline, corpus, index) -> None:
    inline(corpus, index)
    write_corpus(corpus, {"copy.txt": (corpus / "03.txt").read_bytes()})
    again = inline(corpus, index)
    assert (again.new_keys, again.duplicates, again.published, again.version) == (0, 1, True, 2)
    reader = IndexReader.open(index)
    assert reader.document_keys("copy.txt") == reader.document_keys("03.txt") != ()


def test_a_changed_text_moves_its_id(inline, corpus, index) -> None:
    inline(corpus, index)
    old = IndexReader.open(index).document_keys("03.txt")
    write_corpus(corpus, {"03.txt": text(222, 99)})
    again = inline(corpus, index)
    reader = IndexReader.open(index)
    assert again.new_keys == 1 and reader.document_keys("03.txt") != old
    assert old[0] in reader and IndexReader.open(index, 1).document_keys("03.txt") == old


def test_a_corpus_that_changed_while_interrupted_recomputes_nothing(inline, corpus, index) -> None:
    inline(corpus, index)
    kept = forget(index, 3)
    committed = {key for receipt in kept for key in receipt.keys}
    before = identities(index)
    os.unlink(corpus / "02.txt")
    write_corpus(corpus, {"00b.txt": text(155, 55)})
    again = inline(corpus, index)
    assert again.indexed == 16 and again.published
    assert again.resumed_keys + again.new_keys == 16
    assert before.items() <= identities(index).items()
    new = [r for r in read_receipts(IndexPaths(index)) if r.unit not in {k.unit for k in kept}]
    assert new and not committed & {key for receipt in new for key in receipt.keys}
    assert IndexReader.open(index).verify().ok


def test_other_unit_sizes_keep_what_is_committed(inline, corpus, index) -> None:
    inline(corpus, index)
    kept = forget(index, 2)
    again = inline(corpus, index, unit_tokens=300)
    assert again.resumed_keys == sum(len(receipt.keys) for receipt in kept)
    assert again.resumed_keys + again.new_keys == again.indexed == 16


def test_unpublished_units_of_another_build_are_refused(inline, corpus, index) -> None:
    inline(corpus, index)
    forget(index, 2)
    before = identities(index)
    with pytest.raises(BuildError, match="unpublished units of another build") as caught:
        inline(corpus, index, prefix="Another prefix")
    digests = {receipt.build_digest for receipt in read_receipts(IndexPaths(index))}
    assert all(digest in str(caught.value) for digest in digests)
    assert identities(index) == before


def test_read_held_refuses_a_version_of_another_build(inline, corpus, index) -> None:
    inline(corpus, index)
    mine = IndexReader.open(index).manifest.fingerprint
    other = Fingerprint({**mine.build, "longest": 7}, mine.serve)
    assert read_held(IndexPaths(index), mine).receipts == ()
    with pytest.raises(FingerprintMismatchError, match=r"build\.longest: .*, this build has 7"):
        read_held(IndexPaths(index), other)


def test_a_deleted_document_stays_away_until_a_corpus_has_it(inline, corpus, index) -> None:
    inline(corpus, index)
    paths = IndexPaths(index)
    key = IndexReader.open(index).document_keys("03.txt")[0]
    delete_documents(paths, ["03.txt"])
    text_of_3 = (corpus / "03.txt").read_bytes()
    os.unlink(corpus / "03.txt")
    write_corpus(corpus, {"new.txt": text(400, 78)})
    grown = inline(corpus, index)
    assert (grown.version, grown.new_keys, grown.known_keys) == (3, 1, 15)
    reader = IndexReader.open(index)
    assert key not in reader and reader.document_keys("03.txt") == ()
    write_corpus(corpus, {"03.txt": text_of_3})
    assert inline(corpus, index).indexed == 17
    reader = IndexReader.open(index)
    assert reader.document_keys("03.txt") == (key,) and reader.lookup(key)
    assert reader.verify().ok


@pytest.mark.parametrize("tidy", ["", "compact", "compact gc"])
def test_the_same_units_can_be_deleted_and_built_again(inline, corpus, index, tidy) -> None:
    inline(corpus, index)
    paths = IndexPaths(index)
    first = IndexReader.open(index)
    names = [*first.document_ids()]
    masks = {name: [first.lookup(key) for key in first.document_keys(name)] for name in names}
    first.pin()
    delete_documents(paths, names)
    if "compact" in tidy:
        compact(paths)
    if "gc" in tidy:
        collect_garbage(paths, 1)
        assert read_receipts(paths) == []
    again = inline(corpus, index)
    assert again.published and again.indexed == 16
    reader = IndexReader.open(index)
    found = {name: [reader.lookup(key) for key in reader.document_keys(name)] for name in names}
    assert found == masks
    assert reader.manifest.counts == first.manifest.counts
    assert len(set(reader.manifest.units)) == len(reader.manifest.units)
    assert reader.verify().ok
    assert not inline(corpus, index).published


def test_a_build_that_lost_publishes_on_top_of_the_winner(
    inline, corpus, index, monkeypatch
) -> None:
    inline(corpus, index)
    write_corpus(corpus, {"new.txt": text(400, 78)})

    def late(*args, **kwargs):
        monkeypatch.setattr("sift_index.pipelines.publishing.publish", publish)
        delete_documents(IndexPaths(index), ["03.txt", "04.txt"])
        return publish(*args, **kwargs)

    monkeypatch.setattr("sift_index.pipelines.publishing.publish", late)
    grown = inline(corpus, index)
    # The corpus holds what was deleted meanwhile: building it adds it again.
    assert (grown.version, grown.published, grown.indexed, grown.failed) == (3, True, 17, ())
    reader = IndexReader.open(index)
    assert {"new.txt", "03.txt", "04.txt"} <= set(reader.document_ids())
    assert reader.verify().ok


def test_a_build_that_always_loses_says_so(inline, corpus, index, monkeypatch) -> None:
    inline(corpus, index)
    write_corpus(corpus, {"new.txt": text(400, 78)})

    def late(*args, **kwargs):
        current = IndexReader.open(index).manifest
        publish(IndexPaths(index), current.fingerprint, [], {}, previous=current)
        return publish(*args, **kwargs)

    monkeypatch.setattr("sift_index.pipelines.publishing.publish", late)
    with pytest.raises(CommitConflictError, match="run the same command again"):
        inline(corpus, index)
    monkeypatch.undo()
    assert IndexReader.open(index).verify().ok


def test_a_build_overtaken_by_gc_is_told_to_run_again(inline, corpus, index) -> None:
    inline(corpus, index)
    paths = IndexPaths(index)
    fingerprint = read_manifest(paths).fingerprint
    patch = pytest.MonkeyPatch()

    def overtaken(folder: Path, sizes: Mapping[str, int]) -> None:
        patch.undo()
        assert compact(paths) is not None
        assert collect_garbage(paths, keep=1, grace=0).versions == (1,)
        require_sizes(folder, sizes)

    patch.setattr("sift_index.pipelines.resume.require_sizes", overtaken)
    with pytest.raises(CommitConflictError, match="run the same command again"):
        read_held(paths, fingerprint)
    assert read_held(paths, fingerprint).manifest == read_manifest(paths)
