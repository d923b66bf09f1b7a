from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from sift_index.formats.compaction import compact
from sift_index.formats.deletion import delete_documents
from sift_index.formats.errors import IntegrityError, UsageError
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.manifest import current_version
from sift_index.formats.masks import DocumentMasks
from sift_index.formats.packs import Pack
from sift_index.formats.reader import IndexReader
from sift_index.formats.receipts import Receipt
from sift_index.formats.store import IndexPaths
from sift_index.formats.verify import verify_index
from sift_index.formats.writer import publish
from tests.formats.files import rewrite

if TYPE_CHECKING:
    from tests.formats.conftest import SmallIndex

CommitUnit = Callable[..., Receipt]
MakeDocument = Callable[..., DocumentMasks]


def blobs(paths: IndexPaths, version: int) -> dict[bytes, tuple[object, ...]]:
    """The stored columns of every row that a version names."""
    reader = IndexReader.open(paths.root, version)
    found: dict[bytes, tuple[object, ...]] = {}
    pack, row = reader.keys.locations()
    for key, number, place in zip(reader.keys.keys(), pack, row, strict=True):
        info = reader.manifest.packs[number]
        batch = Pack.open(paths.pack_path(info.name), info).batch
        found[key.tobytes()] = tuple(batch.slice(int(place), 1).to_pylist()[0].values())
    return found


def documents(paths: IndexPaths, version: int) -> dict[str, tuple[bytes, ...]]:
    return dict(IndexReader.open(paths.root, version).keys.documents())


def test_it_reads_the_same_from_fewer_packs(small_index: SmallIndex) -> None:
    paths = small_index.paths
    delete_documents(paths, ["ab"])
    done = compact(paths)
    assert done is not None
    assert (done.packs_before, done.packs_after, done.dead_rows) == (2, 1, 1)
    assert done.bytes_after < done.bytes_before
    assert blobs(paths, 4) == blobs(paths, 3)
    assert documents(paths, 4) == documents(paths, 3)
    assert done.manifest.counts == IndexReader.open(paths.root, 3).manifest.counts
    assert sum(pack.rows for pack in done.manifest.packs) == done.manifest.counts.keys
    assert [IndexReader.open(paths.root, 2).lookup(row.key) for row in small_index.rows] == [
        *small_index.rows
    ]
    report = verify_index(paths)
    assert report.ok
    assert not report.garbage


def test_again_there_is_nothing_to_do(small_index: SmallIndex) -> None:
    assert compact(small_index.paths) is not None
    assert compact(small_index.paths) is None
    assert current_version(small_index.paths) == 3


def test_packs_of_the_right_size_without_dead_rows_stay(
    paths: IndexPaths,
    fingerprint: Fingerprint,
    make_document: MakeDocument,
    commit_unit: CommitUnit,
) -> None:
    units = [[make_document(300, 10 * u + n) for n in range(4)] for u in range(3)]
    build = fingerprint.build_digest
    receipts = [commit_unit(paths, f"u{u}", rows, build) for u, rows in enumerate(units)]
    names = {f"{u}-{n}": [row.key] for u, rows in enumerate(units) for n, row in enumerate(rows)}
    publish(paths, fingerprint, receipts, names)
    assert compact(paths, pack_bytes=receipts[0].pack.bytes) is None
    delete_documents(paths, ["1-2"])
    done = compact(paths, pack_bytes=receipts[0].pack.bytes)
    assert done is not None
    assert done.manifest.packs[:2] == (receipts[0].pack, receipts[2].pack)
    assert [pack.rows for pack in done.manifest.packs] == [4, 4, 3]
    assert blobs(paths, 3) == blobs(paths, 2)
    assert verify_index(paths).ok


@pytest.mark.parametrize("size", [1, 700, 2500])
def test_any_size_keeps_all_rows(
    paths: IndexPaths,
    fingerprint: Fingerprint,
    make_document: MakeDocument,
    commit_unit: CommitUnit,
    size: int,
) -> None:
    rows = [make_document(200 + 90 * n, n, la=n % 2 == 0) for n in range(9)]
    build = fingerprint.build_digest
    receipts = [commit_unit(paths, f"u{n}", rows[3 * n : 3 * n + 3], build) for n in range(3)]
    publish(paths, fingerprint, receipts, {f"{n}": [row.key] for n, row in enumerate(rows)})
    delete_documents(paths, ["0", "4", "8"])
    done = compact(paths, pack_bytes=size)
    assert done is not None
    assert blobs(paths, 3) == blobs(paths, 2)
    assert sum(pack.rows for pack in done.manifest.packs) == 6
    assert verify_index(paths).ok


def test_an_index_without_rows_loses_all_packs(small_index: SmallIndex) -> None:
    delete_documents(small_index.paths, ["a", "ab", "c"])
    done = compact(small_index.paths)
    assert done is not None
    assert done.manifest.packs == ()
    assert verify_index(small_index.paths).ok


def test_a_damaged_row_is_reported_not_copied(small_index: SmallIndex) -> None:
    path = small_index.paths.pack_path(small_index.receipts[0].pack.name)
    pack = Pack.open(path, small_index.receipts[0].pack)
    blob = pack.batch.column(4)[0].as_py()
    data = path.read_bytes()
    place = data.index(blob) + len(blob) - 1
    rewrite(path, data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    with pytest.raises(IntegrityError, match="checksum"):
        compact(small_index.paths)
    assert current_version(small_index.paths) == 2


def test_a_size_below_one_is_refused(small_index: SmallIndex) -> None:
    with pytest.raises(UsageError, match="at least 1 byte"):
        compact(small_index.paths, 0)


def test_appending_goes_on_after_it(
    small_index: SmallIndex,
    fingerprint: Fingerprint,
    make_document: MakeDocument,
    commit_unit: CommitUnit,
) -> None:
    paths = small_index.paths
    delete_documents(paths, ["a", "ab"])
    done = compact(paths)
    assert done is not None
    assert done.manifest.units == ("unit-a", "unit-b")
    new = make_document(70, 5)
    receipt = commit_unit(paths, "unit-c", [new], fingerprint.build_digest)
    # A unit of old comes again with its own pack: only what is named comes with it.
    receipts = [*small_index.receipts, receipt]
    names = {"n": [new.key], "b": [small_index.rows[1].key]}
    publish(paths, fingerprint, receipts, names, previous=done.manifest)
    index = IndexReader.open(paths.root)
    assert [row.key in index for row in small_index.rows] == [False, True, True]
    assert index.lookup(new.key) == new
    assert index.manifest.units == ("unit-a", "unit-b", "unit-c")
    assert index.verify().ok
