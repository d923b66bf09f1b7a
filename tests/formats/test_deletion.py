from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from sift_index.formats.deletion import delete_documents
from sift_index.formats.draft import publish_draft
from sift_index.formats.errors import CommitConflictError, IndexNotFoundError, UsageError
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.manifest import Counts, current_version
from sift_index.formats.masks import DocumentMasks
from sift_index.formats.reader import IndexReader
from sift_index.formats.receipts import Receipt, read_receipts
from sift_index.formats.store import IndexPaths
from sift_index.formats.writer import publish

if TYPE_CHECKING:
    from tests.formats.conftest import SmallIndex

CommitUnit = Callable[..., Receipt]
MakeDocument = Callable[..., DocumentMasks]


def test_a_key_goes_with_the_last_document_that_has_it(small_index: SmallIndex) -> None:
    paths, rows = small_index.paths, small_index.rows
    first = delete_documents(paths, ["ab"])
    assert first is not None
    assert (first.documents, first.keys, first.shared) == (1, 1, 1)
    index = IndexReader.open(paths.root)
    assert [*index.document_ids()] == ["a", "c"]
    assert index.document_keys("ab") == ()
    assert index.lookup(rows[0].key) == rows[0]
    assert index.lookup(rows[1].key) is None
    assert index.lookup(rows[2].key) == rows[2]
    assert index.manifest.counts == Counts(documents=2, keys=2, tokens=340)
    assert (index.manifest.packs, index.manifest.units) == (
        small_index.versions[1].packs,
        small_index.versions[1].units,
    )
    second = delete_documents(paths, ["a", "c", "a"])
    assert second is not None
    assert (second.documents, second.keys, second.shared) == (2, 2, 0)
    assert IndexReader.open(paths.root).manifest.counts == Counts(0, 0, 0)
    assert IndexReader.open(paths.root).verify().ok


def test_older_versions_and_open_readers_keep_the_document(small_index: SmallIndex) -> None:
    opened = IndexReader.open(small_index.paths.root)
    delete_documents(small_index.paths, ["a", "ab"])
    for reader in (opened, IndexReader.open(small_index.paths.root, 2)):
        assert reader.document_keys("ab") == tuple(row.key for row in small_index.rows[:2])
        assert reader.lookup(small_index.rows[1].key) == small_index.rows[1]


def test_an_unknown_id_is_named_and_nothing_is_deleted(small_index: SmallIndex) -> None:
    with pytest.raises(UsageError, match=r"documents, found 'x', 'y'; .*nothing was deleted"):
        delete_documents(small_index.paths, ["a", "y", "x"])
    assert current_version(small_index.paths) == 2
    assert delete_documents(small_index.paths, ["x"], ignore_missing=True) is None
    assert delete_documents(small_index.paths, []) is None
    assert current_version(small_index.paths) == 2
    deletion = delete_documents(small_index.paths, ["x", "a", "y", "x"], ignore_missing=True)
    assert deletion is not None
    assert (deletion.documents, deletion.missing) == (1, 2)
    with pytest.raises(UsageError, match=r"'a' was deleted after version 2\)"):
        delete_documents(small_index.paths, ["a"])


def test_no_index_is_said_so(paths: IndexPaths) -> None:
    with pytest.raises(IndexNotFoundError, match="sift-index build"):
        delete_documents(paths, ["a"])


def test_a_document_without_keys_and_a_key_without_document(
    paths: IndexPaths,
    fingerprint: Fingerprint,
    make_document: MakeDocument,
    commit_unit: CommitUnit,
) -> None:
    row = make_document(40, 3)
    receipt = commit_unit(paths, "u", [row], fingerprint.build_digest)
    publish(paths, fingerprint, [receipt], {"none": []})
    deletion = delete_documents(paths, ["none"])
    assert deletion is not None
    assert (deletion.documents, deletion.keys) == (1, 0)
    assert IndexReader.open(paths.root).lookup(row.key) == row


def test_appending_does_not_bring_documents_back(
    small_index: SmallIndex, fingerprint: Fingerprint
) -> None:
    paths, rows = small_index.paths, small_index.rows
    delete_documents(paths, ["a", "ab"])
    current = IndexReader.open(paths.root).manifest
    publish(paths, fingerprint, read_receipts(paths), {"d": [rows[2].key]}, previous=current)
    index = IndexReader.open(paths.root)
    assert [*index.document_ids()] == ["c", "d"]
    assert [row.key in index for row in rows] == [False, False, True]
    assert index.verify().ok


def test_a_document_named_again_comes_back_from_its_pack_and_alone(
    small_index: SmallIndex, fingerprint: Fingerprint
) -> None:
    paths, rows = small_index.paths, small_index.rows
    delete_documents(paths, ["a", "ab"])
    current = IndexReader.open(paths.root).manifest
    again = publish(
        paths, fingerprint, [small_index.receipts[0]], {"b": [rows[1].key]}, previous=current
    )
    assert (again.packs, again.units) == (current.packs, current.units)
    assert again.counts == Counts(documents=2, keys=2, tokens=49)
    index = IndexReader.open(paths.root)
    assert index.lookup(rows[1].key) == rows[1]
    assert rows[0].key not in index
    assert index.verify().ok


def test_of_two_writers_one_wins_and_the_other_may_try_again(
    small_index: SmallIndex, fingerprint: Fingerprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = small_index.paths
    publisher = "sift_index.formats.deletion.publish_draft"

    def late(*args, **kwargs):
        monkeypatch.setattr(publisher, publish_draft)
        publish(paths, fingerprint, [], {"e": []}, previous=small_index.versions[1])
        return publish_draft(*args, **kwargs)

    monkeypatch.setattr(publisher, late)
    with pytest.raises(CommitConflictError, match="run the same command again") as caught:
        delete_documents(paths, ["a"])
    assert caught.value.details == {"retryable": True}
    assert [*IndexReader.open(paths.root).document_ids()] == ["a", "ab", "c", "e"]
    assert delete_documents(paths, ["a"]) is not None
    assert [*IndexReader.open(paths.root).document_ids()] == ["ab", "c", "e"]
    assert IndexReader.open(paths.root).verify().ok
