"""What the format asks of an object store: requests and bytes, counted by the server."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sift_index.formats import buckets
from sift_index.formats.compaction import UNIT_PREFIX, compact
from sift_index.formats.deletion import delete_documents
from sift_index.formats.errors import IntegrityError, StorageError
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.flatbuffers import BLOCK, FOOTER_BATCHES, footer_table, vector
from sift_index.formats.manifest import Manifest
from sift_index.formats.packhead import read_pack_head
from sift_index.formats.reader import IndexReader
from sift_index.formats.receipts import Receipt, read_receipts
from sift_index.formats.store import IndexPaths, require_sizes
from sift_index.formats.verify import verify_index
from sift_index.formats.writer import publish
from tests.formats.conftest import CommitUnit, MakeDocument, SmallIndex
from tests.object_store import Bucket

UNITS, ROWS, TOKENS = 6, 40, 500


@dataclass(frozen=True)
class Committed:
    """Units that no version has yet; `keys` are those of the documents "0", "1", …"""

    paths: IndexPaths
    fingerprint: Fingerprint
    receipts: tuple[Receipt, ...]
    keys: tuple[bytes, ...]

    @property
    def pack_bytes(self) -> int:
        return sum(receipt.pack.bytes for receipt in self.receipts)

    def publish(self) -> Manifest:
        documents = {str(i): [key] for i, key in enumerate(self.keys)}
        return publish(self.paths, self.fingerprint, self.receipts, documents)


@pytest.fixture
def committed(
    bucket: Bucket, fingerprint: Fingerprint, make_document: MakeDocument, commit_unit: CommitUnit
) -> Committed:
    """Packs in the shape of a small model, and a log that starts behind them."""
    paths = IndexPaths(bucket.path("index"))
    row = make_document(TOKENS, layers=16, heads=32)
    keys = tuple(hashlib.md5(bytes([i])).digest() for i in range(UNITS * ROWS))
    receipts = []
    for unit in range(UNITS):
        rows = [replace(row, key=key) for key in keys[unit * ROWS : (unit + 1) * ROWS]]
        receipts.append(commit_unit(paths, f"unit-{unit}", rows, fingerprint.build_digest))
    bucket.log.clear()
    return Committed(paths, fingerprint, tuple(receipts), keys)


def _read(bucket: Bucket, unit: str = "") -> tuple[int, int]:
    """Return how often packs (of units of this name) were read, and the bytes that came."""
    gets = [found for found in bucket.requests(f"index/packs/{unit}") if found.method == "GET"]
    return len(gets), sum(found.answered for found in gets)


def test_publishing_reads_both_ends_of_a_pack_and_keeps_no_copy(
    bucket: Bucket, committed: Committed, tmp_path: Path
) -> None:
    manifest = committed.publish()
    requests, answered = _read(bucket)
    assert requests == 2 * UNITS
    assert answered < 0.05 * committed.pack_bytes
    assert not (tmp_path / "cache").exists()
    assert manifest.counts.tokens == UNITS * ROWS * TOKENS
    assert verify_index(committed.paths).ok


def test_deleting_reads_as_little_of_the_packs_it_takes_from(
    bucket: Bucket, committed: Committed
) -> None:
    committed.publish()
    bucket.log.clear()
    deletion = delete_documents(committed.paths, ["3", "4"])
    assert deletion is not None
    assert deletion.manifest.counts.tokens == (UNITS * ROWS - 2) * TOKENS
    requests, answered = _read(bucket)
    assert requests == 2 and answered < 0.05 * committed.pack_bytes / UNITS


def test_compacting_downloads_no_pack_that_it_wrote(
    bucket: Bucket, committed: Committed, tmp_path: Path
) -> None:
    committed.publish()
    delete_documents(committed.paths, ["3"])
    bucket.log.clear()
    done = compact(committed.paths, pack_bytes=committed.pack_bytes // 2)
    assert done is not None
    written = done.manifest.packs
    requests, answered = _read(bucket, UNIT_PREFIX)
    assert len(written) > 1 and requests == 2 * len(written)
    assert answered < 0.05 * sum(info.bytes for info in written)
    kept = {path.name for path in (tmp_path / "cache").iterdir()}
    assert kept.isdisjoint(info.sha256 for info in written)
    assert verify_index(committed.paths).ok


def test_receipts_are_read_without_asking_for_every_pack(
    bucket: Bucket, committed: Committed
) -> None:
    assert read_receipts(committed.paths) == [*committed.receipts]
    assert bucket.requests("index/packs/") == []
    assert len(bucket.requests("index/commits/")) == 2 * UNITS


def test_sizes_of_packs_come_from_a_listing(bucket: Bucket, committed: Committed) -> None:
    sizes = {receipt.pack.name: receipt.pack.bytes for receipt in committed.receipts}
    require_sizes(committed.paths.packs, sizes)
    assert bucket.requests("index/packs/") == []
    with pytest.raises(IntegrityError, match="expected an object"):
        require_sizes(committed.paths.packs, {**sizes, "none-0.arrow": 9})


def test_opening_reads_no_receipt_and_no_pack(bucket: Bucket, remote_index: SmallIndex) -> None:
    bucket.log.clear()
    IndexReader.open(bucket.url("index"))
    assert bucket.requests("index/commits/") == bucket.requests("index/packs/") == []


def test_a_pack_that_is_lost_or_cut_is_named_and_not_published(
    bucket: Bucket, committed: Committed
) -> None:
    pack = committed.receipts[2].pack
    bucket.delete(f"index/packs/{pack.name}")
    with pytest.raises(IntegrityError, match=pack.name):
        committed.publish()
    bucket.put(f"index/packs/{pack.name}", b"cut")
    with pytest.raises(IntegrityError, match=f"{pack.name}: expected {pack.bytes} bytes, found 3"):
        committed.publish()
    assert not bucket.keys("index/manifest")


def test_a_store_that_fails_in_the_middle_is_no_damage(
    committed: Committed, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = committed.receipts[0].pack
    path = committed.paths.pack_path(pack.name)

    def fail(start: int, count: int) -> bytes:
        with buckets.store_errors(path):
            if start:
                raise OSError("connection lost")
            return bytes(count)

    monkeypatch.setattr("sift_index.formats.packhead.file_pieces", lambda *_: nullcontext(fail))
    monkeypatch.setattr("sift_index.formats.packhead._END_BYTES", 0)  # the footer is asked for late
    with pytest.raises(StorageError, match="connection lost"):
        read_pack_head(path, pack, committed.fingerprint.build_digest)


@pytest.mark.parametrize("offset", [-64, 2**40, 2**62])
def test_a_pack_that_points_outside_itself_is_damaged_not_a_stores_trouble(
    bucket: Bucket, committed: Committed, offset: int
) -> None:
    key = f"index/packs/{committed.receipts[2].pack.name}"
    pack = bytearray(bucket.get(key))
    place = vector(pack, footer_table(pack), FOOTER_BATCHES)
    _, *rest = BLOCK.unpack_from(pack, place)
    BLOCK.pack_into(pack, place, offset, *rest)
    bucket.put(key, bytes(pack))
    with pytest.raises(IntegrityError, match=committed.receipts[2].pack.name):
        committed.publish()
