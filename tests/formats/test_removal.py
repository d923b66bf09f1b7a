"""Documents that leave with a version: what goes, what stays, and the counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.keyorder import stack_keys
from sift_index.formats.manifest import Manifest
from sift_index.formats.reader import IndexReader
from sift_index.formats.receipts import read_receipts, receipt_keys
from sift_index.formats.removal import Removal
from sift_index.formats.writer import publish

if TYPE_CHECKING:
    from tests.formats.conftest import SmallIndex

# The small index: a has row 0, ab rows 0 and 1, c row 2; they have 300, 9 and 40 tokens.


def removal(ids: Sequence[str], keys: Sequence[bytes]) -> Removal:
    return Removal(pa.array(ids, pa.large_string()), stack_keys(b"".join(sorted(keys))))


@pytest.fixture
def without(small_index: SmallIndex, fingerprint: Fingerprint):
    """Publish a third version without documents and, where nobody has them, keys by row."""

    def _without(ids: Sequence[str], rows: Sequence[int], documents=None) -> Manifest:
        gone = removal(ids, [small_index.rows[row].key for row in rows])
        previous = small_index.versions[1]
        return publish(
            small_index.paths, fingerprint, [], documents or {}, previous=previous, removal=gone
        )

    return _without


@pytest.mark.parametrize(
    ("ids", "rows", "documents", "left", "tokens"),
    [
        (["c"], [2], 2, {0, 1}, 309),
        (["c"], [], 2, {0, 1, 2}, 349),  # the key may stay: the caller says which go
        (["ab"], [0, 1], 2, {0, 2}, 340),  # a still has row 0
        (["a"], [0, 1, 2], 2, {0, 1, 2}, 349),
        (["a", "ab"], [0, 1, 2], 1, {2}, 40),
        (["nobody"], [], 3, {0, 1, 2}, 349),
        (["a", "ab", "c"], [0, 1, 2], 0, set(), 0),
    ],
)
def test_what_no_document_has_any_more_goes(
    without, small_index, ids, rows, documents, left, tokens
) -> None:
    manifest = without(ids, rows)
    assert (manifest.counts.documents, manifest.counts.keys) == (documents, len(left))
    assert manifest.counts.tokens == tokens
    reader = IndexReader.open(small_index.paths.root)
    found = {n for n, row in enumerate(small_index.rows) if reader.lookup(row.key) is not None}
    assert found == left and reader.verify().ok
    assert set(reader.document_ids()) == {"a", "ab", "c"} - set(ids)


def test_a_key_that_another_document_gets_in_the_same_version_stays(without, small_index) -> None:
    manifest = without(["c"], [2], {"new": [small_index.rows[2].key]})
    assert (manifest.counts.documents, manifest.counts.keys, manifest.counts.tokens) == (3, 3, 349)
    assert IndexReader.open(small_index.paths.root).verify().ok


def test_packs_and_units_stay_named(without, small_index) -> None:
    manifest = without(["a", "ab", "c"], [0, 1, 2])
    assert manifest.packs == small_index.versions[1].packs
    assert manifest.units == small_index.versions[1].units


def test_the_first_version_leaves_out_what_no_document_has(small_index, fingerprint) -> None:
    for version in small_index.versions:
        small_index.paths.manifest_path(version.version).unlink()
    gone = removal([], [row.key for row in small_index.rows])
    documents = {"a": [small_index.rows[0].key]}
    again = publish(small_index.paths, fingerprint, small_index.receipts, documents, removal=gone)
    counts = again.counts
    assert (counts.documents, counts.keys, counts.tokens) == (1, 1, 300)
    assert again.units == ("unit-a", "unit-b")


def test_receipts_are_read_without_those_that_a_version_has(small_index) -> None:
    every = read_receipts(small_index.paths)
    assert [receipt.unit for receipt in every] == ["unit-a", "unit-b"]
    (left,) = read_receipts(small_index.paths, without={"unit-a"})
    assert left.unit == "unit-b"
    small_index.paths.receipt_path("unit-a").write_bytes(b"damaged")
    assert read_receipts(small_index.paths, without={"unit-a"}) == [left]
    keys = receipt_keys(every)
    assert keys.tobytes().hex() == "".join(key for receipt in every for key in receipt.keys)
