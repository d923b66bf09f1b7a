from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sift_index.formats.errors import (
    CommitConflictError,
    FeatureError,
    FingerprintMismatchError,
    IntegrityError,
    UsageError,
)
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.manifest import Counts, current_version
from sift_index.formats.masks import DocumentMasks
from sift_index.formats.reader import IndexReader
from sift_index.formats.receipts import Receipt
from sift_index.formats.store import IndexPaths
from sift_index.formats.writer import publish

if TYPE_CHECKING:
    from tests.formats.conftest import SmallIndex

CommitUnit = Callable[..., Receipt]
MakeDocument = Callable[..., DocumentMasks]


def test_counts_and_names_follow_the_content(small_index: SmallIndex) -> None:
    first, second = small_index.versions
    assert first.counts == Counts(documents=2, keys=2, tokens=309)
    assert second.counts == Counts(documents=3, keys=3, tokens=349)
    assert (first.key_table.name, second.key_table.name) == (
        "keys-00000001.arrow",
        "keys-00000002.arrow",
    )
    assert second.units == ("unit-a", "unit-b")
    assert second.packs == tuple(receipt.pack for receipt in small_index.receipts)


def test_a_document_given_again_gets_its_new_keys(
    small_index: SmallIndex, fingerprint: Fingerprint
) -> None:
    keys = [row.key for row in small_index.rows]
    publish(
        small_index.paths,
        fingerprint,
        [],
        {"a": [keys[2], keys[0]], "é": []},
        previous=small_index.versions[1],
    )
    index = IndexReader.open(small_index.paths.root)
    assert index.document_keys("a") == (keys[2], keys[0])
    assert index.document_keys("ab") == (keys[0], keys[1])
    assert index.document_keys("c") == (keys[2],)
    assert list(index.document_ids()) == ["a", "ab", "c", "é"]
    assert index.manifest.counts.tokens == 349


def test_of_two_packs_with_one_key_the_earlier_wins(
    paths: IndexPaths,
    fingerprint: Fingerprint,
    make_document: MakeDocument,
    commit_unit: CommitUnit,
) -> None:
    build = fingerprint.build_digest
    key = b"k" * 15 + b"\0"
    old, new = (make_document(300, seed, key=key) for seed in (1, 2))
    other = make_document(40, 3)
    one = commit_unit(paths, "u1", [old], build)
    two = commit_unit(paths, "u2", [new, other], build)
    first = publish(paths, fingerprint, [two, one], {})
    assert first.counts == Counts(0, 2, 340)
    assert IndexReader.open(paths.root).lookup(key) == old
    third = commit_unit(paths, "u0", [make_document(300, 4, key=key)], build)
    second = publish(paths, fingerprint, [one, two, third], {}, previous=first)
    assert second.counts == first.counts
    assert IndexReader.open(paths.root).lookup(key) == old
    assert IndexReader.open(paths.root).verify().ok


def test_two_writers_cannot_publish_one_version(
    small_index: SmallIndex, fingerprint: Fingerprint
) -> None:
    with pytest.raises(CommitConflictError, match="version 2"):
        publish(small_index.paths, fingerprint, [], {}, previous=small_index.versions[0])
    with pytest.raises(CommitConflictError, match="version 1"):
        publish(small_index.paths, fingerprint, [], {})
    assert IndexReader.open(small_index.paths.root).verify().ok


def test_an_attempt_that_died_before_its_manifest_does_not_block(
    small_index: SmallIndex, fingerprint: Fingerprint
) -> None:
    paths = small_index.paths
    paths.keytable_path(3).write_bytes(b"another attempt")
    third = publish(paths, fingerprint, [], {}, previous=small_index.versions[1])
    assert third.key_table.name == f"keys-00000003-{third.key_table.sha256[:16]}.arrow"
    assert paths.keytable_path(3).read_bytes() == b"another attempt"
    report = IndexReader.open(paths.root).verify()
    assert report.ok
    assert report.garbage == ("keys-00000003.arrow",)


def test_another_build_is_refused_before_anything_is_written(
    small_index: SmallIndex, fingerprint: Fingerprint
) -> None:
    other = replace(fingerprint, build={"policy": "paper"})
    with pytest.raises(FingerprintMismatchError, match="build.policy"):
        publish(small_index.paths, other, [], {}, previous=small_index.versions[1])
    stranger = replace(small_index.receipts[0], build_digest="0" * 32)
    with pytest.raises(FingerprintMismatchError, match="unit-a"):
        publish(small_index.paths, fingerprint, [stranger], {}, previous=small_index.versions[1])
    assert current_version(small_index.paths) == 2
    assert not small_index.paths.keytable_path(3).exists()


def test_a_document_with_an_unknown_key_is_named(
    small_index: SmallIndex, fingerprint: Fingerprint
) -> None:
    known = small_index.rows[0].key
    for keys, message in (([known, bytes(16)], "document 'lost'.*0{32}"), ([b"x"], "16 bytes")):
        documents = {"empty": [], "lost": keys, "z": [known]}
        with pytest.raises(UsageError, match=message):
            publish(small_index.paths, fingerprint, [], documents, previous=small_index.versions[1])
    assert current_version(small_index.paths) == 2


def test_an_id_that_is_no_text_is_refused(
    small_index: SmallIndex, fingerprint: Fingerprint
) -> None:
    with pytest.raises(UsageError, match="document id"):
        publish(
            small_index.paths,
            fingerprint,
            [],
            {"\ud800": []},
            previous=small_index.versions[1],
        )


def test_a_damaged_previous_table_is_not_built_upon(
    small_index: SmallIndex, fingerprint: Fingerprint
) -> None:
    path = small_index.paths.keytable_path(2)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match="keys-00000002"):
        publish(small_index.paths, fingerprint, [], {}, previous=small_index.versions[1])


def test_a_writer_feature_it_lacks_stops_it(
    small_index: SmallIndex, fingerprint: Fingerprint
) -> None:
    sealed = replace(small_index.versions[1], writer_features=("sealed",))
    with pytest.raises(FeatureError, match="sealed"):
        publish(small_index.paths, fingerprint, [], {}, previous=sealed)


def test_an_index_may_be_empty(paths: IndexPaths, fingerprint: Fingerprint) -> None:
    publish(paths, fingerprint, [], {}, quality={"kl": 0.01})
    index = IndexReader.open(paths.root)
    assert len(index) == 0
    assert index.manifest.quality == {"kl": 0.01}
    assert index.lookup(bytes(16)) is None
    assert index.verify().ok
