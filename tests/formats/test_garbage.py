from __future__ import annotations

import errno
import os
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sift_index.formats.compaction import compact
from sift_index.formats.deletion import delete_documents
from sift_index.formats.errors import (
    CommitConflictError,
    IndexNotFoundError,
    IntegrityError,
    UsageError,
)
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.garbage import collect_garbage
from sift_index.formats.history import history
from sift_index.formats.location import Location
from sift_index.formats.manifest import read_manifest, versions
from sift_index.formats.masks import DocumentMasks
from sift_index.formats.packs import write_pack
from sift_index.formats.reader import IndexReader
from sift_index.formats.receipts import Receipt, commit, read_receipts, reuse_receipt
from sift_index.formats.store import (
    TEMP_PREFIX,
    IndexPaths,
    freshen,
    remove_all,
    write_if_absent,
)
from sift_index.formats.verify import verify_index
from sift_index.formats.writer import publish
from tests.formats.files import rewrite

if TYPE_CHECKING:
    from tests.formats.conftest import SmallIndex

CommitUnit = Callable[..., Receipt]
MakeDocument = Callable[..., DocumentMasks]
HOUR = 3600.0


def age(path: Path, seconds: float) -> Path:
    """Make a file look as if it had been written `seconds` earlier."""
    status = path.stat()
    os.utime(path, (status.st_atime - seconds, status.st_mtime - seconds))
    return path


def names(paths: IndexPaths) -> set[str]:
    return {str(p.relative_to(paths.root)) for p in paths.root.rglob("*") if p.is_file()}


@pytest.fixture
def compacted(small_index: SmallIndex) -> SmallIndex:
    """Version 3 lacks documents a and ab, version 4 is compacted."""
    delete_documents(small_index.paths, ["a", "ab"])
    assert compact(small_index.paths) is not None
    return small_index


def test_only_what_the_newest_versions_need_stays(compacted: SmallIndex) -> None:
    paths = compacted.paths
    before = names(paths)
    plan = collect_garbage(paths, 1, dry_run=True)
    assert names(paths) == before
    done = collect_garbage(paths, 1)
    assert done == plan
    assert (done.versions, done.kept, done.young) == ((1, 2, 3), (4,), ())
    assert names(paths) == before - set(done.files)
    manifest = IndexReader.open(paths.root).manifest
    assert names(paths) == {
        "manifest-00000004.json",
        manifest.key_table.name,
        *(f"packs/{pack.name}" for pack in manifest.packs),
    }
    assert done.bytes > 0
    report = verify_index(paths)
    assert report.ok
    assert not report.garbage
    assert collect_garbage(paths, 1).files == ()


def test_versions_that_are_kept_stay_whole(compacted: SmallIndex) -> None:
    paths, rows = compacted.paths, compacted.rows
    done = collect_garbage(paths, 3)
    assert done.files == ("manifest-00000001.json", "keys-00000001.arrow")
    assert versions(paths) == [2, 3, 4]
    assert [IndexReader.open(paths.root, 2).lookup(row.key) for row in rows] == [*rows]
    assert collect_garbage(paths, 9).files == ()
    assert verify_index(paths).ok


def test_a_unit_that_is_not_published_yet_stays(
    compacted: SmallIndex,
    fingerprint: Fingerprint,
    make_document: MakeDocument,
    commit_unit: CommitUnit,
) -> None:
    paths, row = compacted.paths, make_document(70, 5)
    waiting = commit_unit(paths, "unit-z", [row], fingerprint.build_digest)
    for path in (paths.receipt_path("unit-z"), paths.pack_path(waiting.pack.name)):
        age(path, 1000 * HOUR)
    collect_garbage(paths, 1, grace=0)
    current = IndexReader.open(paths.root).manifest
    publish(paths, fingerprint, [waiting], {"z": [row.key]}, previous=current)
    assert IndexReader.open(paths.root).lookup(row.key) == row
    assert verify_index(paths).ok


def test_leftovers_go_when_they_are_old(
    small_index: SmallIndex, make_document: MakeDocument, fingerprint: Fingerprint
) -> None:
    paths = small_index.paths
    loser = write_pack(paths, "unit-a", fingerprint.build_digest, [make_document(50, 9)])
    folder = paths.root / f"{TEMP_PREFIX}1-aa"
    folder.mkdir()
    leftovers = [
        paths.pack_path(loser.name),
        paths.root / f"{TEMP_PREFIX}1-ff",
        paths.commits / f"{TEMP_PREFIX}1-ff",
        folder / f"{TEMP_PREFIX}1-bb",
        paths.keytable_path(3),
    ]
    for path in leftovers[1:]:
        path.write_bytes(b"half")
    foreign = paths.root / "notes.txt"
    foreign.write_text("mine")
    age(foreign, 1000 * HOUR)
    for path in (*leftovers, folder):
        age(path, 2 * HOUR)
    done = collect_garbage(paths, 2, grace=3 * HOUR)
    assert done.files == ()
    assert len(done.young) == 5
    done = collect_garbage(paths, 2, grace=1 * HOUR)
    assert len(done.files) == 5
    assert done.bytes == 4 * 4 + loser.bytes
    assert not any(path.exists() for path in (*leftovers, folder))
    assert foreign.exists()
    report = verify_index(paths)
    assert report.ok
    assert not report.garbage


def test_a_key_table_that_cannot_be_published_any_more_goes_at_once(
    small_index: SmallIndex,
) -> None:
    late = small_index.paths.root / f"keys-00000002-{'0' * 16}.arrow"
    write_if_absent(late, b"of a writer that lost")
    age(late, 1)
    assert collect_garbage(small_index.paths, 2).files == (late.name,)


def test_a_receipt_that_a_running_build_uses_again_stays(
    compacted: SmallIndex, fingerprint: Fingerprint
) -> None:
    paths, rows = compacted.paths, compacted.rows
    current = IndexReader.open(paths.root).manifest
    for name in names(paths):  # file systems count in steps of milliseconds
        age(paths.root / name, 1)
    again = reuse_receipt(paths, "unit-a")
    assert again is not None
    collect_garbage(paths, 1)
    assert not paths.receipt_path("unit-b").exists()
    names_of = {"a": [row.key for row in rows[:2]]}
    publish(paths, fingerprint, [again], names_of, previous=current)
    index = IndexReader.open(paths.root)
    assert [index.lookup(row.key) for row in rows] == [*rows]
    assert verify_index(paths).ok


def test_a_receipt_that_is_used_again_while_gc_sorts_keeps_its_pack(
    compacted: SmallIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = compacted.paths
    for name in names(paths):
        age(paths.root / name, 1)

    def late(found: Sequence[Location]) -> None:
        reuse_receipt(paths, "unit-a")
        monkeypatch.undo()
        remove_all(found)

    monkeypatch.setattr("sift_index.formats.garbage.remove_all", late)
    collect_garbage(paths, 1)
    assert {receipt.unit for receipt in read_receipts(paths)} == {"unit-a"}


def test_a_receipt_that_goes_while_it_is_used_again_is_none(
    compacted: SmallIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_late(path: Location) -> bool:
        found = freshen(path)
        remove_all([path])
        return found

    monkeypatch.setattr("sift_index.formats.receipts.freshen", too_late)
    assert reuse_receipt(compacted.paths, "unit-a") is None


def test_a_unit_whose_receipt_went_is_committed_anew(
    compacted: SmallIndex, fingerprint: Fingerprint
) -> None:
    paths, rows = compacted.paths, compacted.rows
    collect_garbage(paths, 1)
    assert reuse_receipt(paths, "unit-a") is None
    pack = write_pack(paths, "unit-a", fingerprint.build_digest, rows[:2])
    assert pack == compacted.receipts[0].pack
    again = commit(paths, compacted.receipts[0])
    current = IndexReader.open(paths.root).manifest
    names_of = {"ab": [row.key for row in rows[:2]]}
    version = publish(paths, fingerprint, [again], names_of, previous=current)
    assert version.units == current.units
    assert version.counts.tokens == 349
    assert verify_index(paths).ok


def test_a_version_to_keep_that_is_damaged_stops_it(compacted: SmallIndex) -> None:
    paths = compacted.paths
    path = paths.manifest_path(3)
    rewrite(path, path.read_bytes()[:-1])
    before = names(paths)
    with pytest.raises(IntegrityError, match="manifest-00000003"):
        collect_garbage(paths, 2)
    assert names(paths) == before
    assert collect_garbage(paths, 1).versions == (1, 2, 3)
    assert verify_index(paths).ok


def test_a_damaged_receipt_stops_it(compacted: SmallIndex) -> None:
    path = compacted.paths.receipt_path("unit-a")
    rewrite(path, b"{}")
    before = names(compacted.paths)
    with pytest.raises(IntegrityError, match="unit-a"):
        collect_garbage(compacted.paths, 1)
    assert names(compacted.paths) == before


def test_bad_arguments_are_refused(small_index: SmallIndex, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        collect_garbage(small_index.paths, 0)
    with pytest.raises(IndexNotFoundError):
        collect_garbage(IndexPaths(tmp_path), 1)


def test_a_reader_keeps_what_it_mapped(compacted: SmallIndex) -> None:
    paths, rows = compacted.paths, compacted.rows
    pinned, used, idle = (IndexReader.open(paths.root, 2) for _ in range(3))
    pinned.pin()
    assert used.lookup(rows[0].key) == rows[0]
    collect_garbage(paths, 1)
    assert [pinned.lookup(row.key) for row in rows] == [*rows]
    assert used.lookup(rows[1].key) == rows[1]
    assert idle.document_keys("ab") == (rows[0].key, rows[1].key)
    for reader, row in ((used, rows[2]), (idle, rows[0])):
        with pytest.raises(IndexNotFoundError, match=r"gc` removed this version; open the index"):
            reader.lookup(row.key)
    with pytest.raises(IndexNotFoundError, match="found version 4 alone"):
        IndexReader.open(paths.root, 2)


def test_opening_the_newest_goes_on_when_it_is_replaced_meanwhile(
    compacted: SmallIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sift_index.formats.manifest import open_keytable

    paths = compacted.paths
    opener = "sift_index.formats.reader.open_keytable"

    def late(*args):
        monkeypatch.setattr(opener, open_keytable)
        delete_documents(paths, ["c"])
        collect_garbage(paths, 1)
        return open_keytable(*args)

    monkeypatch.setattr(opener, late)
    assert IndexReader.open(paths.root).manifest.version == 5


@pytest.mark.parametrize("moment", ["before", "after the look"])
def test_a_number_that_gc_made_free_is_not_published_again(
    compacted: SmallIndex,
    fingerprint: Fingerprint,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    paths, stale = compacted.paths, compacted.versions[1]
    table = paths.root / stale.key_table.name
    kept = table.read_bytes()
    collect_garbage(paths, 1)
    table.write_bytes(kept)  # a writer may still have it mapped
    if moment == "after the look":
        monkeypatch.setattr("sift_index.formats.manifest.current_version", lambda paths: 2)
    with pytest.raises(CommitConflictError, match="version 3"):
        publish(paths, fingerprint, [], {}, previous=stale)
    monkeypatch.undo()
    assert IndexReader.open(paths.root).manifest.version == 4
    assert moment != "before" or versions(paths) == [4]


def test_history_says_what_each_version_holds(compacted: SmallIndex) -> None:
    found = history(compacted.paths)
    assert [facts.version for facts in found] == [1, 2, 3, 4]
    assert [facts.writer for facts in found] == [
        "sift-index",
        "sift-index",
        "sift-index delete",
        "sift-index compact",
    ]
    assert [(f.documents, f.keys, f.tokens) for f in found][1:] == [(3, 3, 349), *[(1, 1, 40)] * 2]
    assert [facts.dead_rows for facts in found] == [0, 0, 2, 0]
    assert found[3].own_bytes == found[3].bytes
    assert found[2].own_bytes == compacted.paths.keytable_path(3).stat().st_size
    with pytest.raises(IndexNotFoundError):
        history(IndexPaths(compacted.paths.packs))


@pytest.fixture
def replaced(small_index: SmallIndex, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let another process delete, compact and collect when a function is called next."""

    def before(name: str) -> None:
        original = pkgutil.resolve_name(name)

        def late(*arguments: object) -> object:
            monkeypatch.undo()
            delete_documents(small_index.paths, ["c"])
            compact(small_index.paths)
            collect_garbage(small_index.paths, 1, grace=0)
            return original(*arguments)

        monkeypatch.setattr(name, late)

    return before


@pytest.mark.parametrize("name", ["_tokens", "open_keytable"])
def test_a_deletion_that_gc_overtook_is_a_conflict_not_damage(
    small_index: SmallIndex, replaced: Callable[[str], None], name: str
) -> None:
    replaced(f"sift_index.formats.deletion.{name}")
    with pytest.raises(CommitConflictError, match="version 3, found that another writer did"):
        delete_documents(small_index.paths, ["ab"])
    assert delete_documents(small_index.paths, ["ab"]) is not None
    assert verify_index(small_index.paths).ok


@pytest.mark.parametrize("name", ["_groups", "_write", "_moved"])
def test_a_compaction_that_gc_overtook_is_a_conflict_not_damage(
    small_index: SmallIndex, replaced: Callable[[str], None], name: str
) -> None:
    delete_documents(small_index.paths, ["ab"])
    replaced(f"sift_index.formats.compaction.{name}")
    with pytest.raises(CommitConflictError, match="version 4, found that another writer did"):
        compact(small_index.paths)
    assert verify_index(small_index.paths).ok


def test_damage_without_another_writer_stays_damage(small_index: SmallIndex) -> None:
    small_index.paths.pack_path(small_index.receipts[0].pack.name).unlink()
    with pytest.raises(IntegrityError, match="restore the file"):
        delete_documents(small_index.paths, ["ab"])
    with pytest.raises(IntegrityError, match="restore the file"):
        compact(small_index.paths)


def test_a_manifest_that_gc_removes_while_it_is_opened_is_passed_over(
    small_index: SmallIndex, replaced: Callable[[str], None]
) -> None:
    replaced("sift_index.formats.manifest.read_file")
    assert read_manifest(small_index.paths).version == 4


@pytest.mark.parametrize("name", ["history.read_manifest", "manifest.read_file"])
def test_history_lists_again_when_gc_removed_a_version(
    small_index: SmallIndex, replaced: Callable[[str], None], name: str
) -> None:
    replaced(f"sift_index.formats.{name}")
    assert [facts.version for facts in history(small_index.paths)] == [4]


def test_a_leftover_that_cannot_be_listed_counts_as_young(
    small_index: SmallIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small_index.paths.root / f"{TEMP_PREFIX}1-aa"
    folder.mkdir()
    (folder / "file").write_bytes(b"half")
    age(folder, 1000 * HOUR)
    iterdir = Path.iterdir

    def refuse(path: Path) -> Iterator[Path]:
        if path == folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    done = collect_garbage(small_index.paths, 2, grace=0)
    assert (done.files, done.young) == ((), (folder.name,))
    assert folder.exists()
