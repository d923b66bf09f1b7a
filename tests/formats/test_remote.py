"""An index in a store that speaks S3: the same content, versions and errors as in a folder."""

from __future__ import annotations

import io
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sift_index.formats import buckets, claims
from sift_index.formats.compaction import compact
from sift_index.formats.deletion import delete_documents
from sift_index.formats.draft import publish_draft
from sift_index.formats.errors import (
    CommitConflictError,
    IndexNotFoundError,
    IntegrityError,
    StorageError,
    UsageError,
)
from sift_index.formats.export import export_index
from sift_index.formats.failures import (
    FailedDocument,
    clear_failure,
    read_failures,
    record_failure,
)
from sift_index.formats.garbage import collect_garbage
from sift_index.formats.history import history
from sift_index.formats.importing import import_index
from sift_index.formats.location import RemotePath
from sift_index.formats.manifest import Manifest, versions
from sift_index.formats.reader import IndexReader
from sift_index.formats.receipts import read_receipts
from sift_index.formats.store import (
    IndexPaths,
    file_names,
    freshen,
    read_file,
    regular_size,
    write_folder_if_absent,
    write_if_absent,
)
from sift_index.formats.verify import verify_index
from tests.formats.conftest import SmallIndex
from tests.object_store import Bucket


def _without_boto3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "find_spec", lambda name: None)


@pytest.fixture(params=["conditional", "claim"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With boto3, which writes conditionally, and without."""
    if request.param == "claim":
        _without_boto3(monkeypatch)


def _objects(bucket: Bucket) -> dict[str, bytes]:
    return {key: bucket.get(key) for key in bucket.keys()}


def _cached(tmp_path: Path) -> dict[str, Path]:
    return {path.name: path for path in (tmp_path / "cache").iterdir()}


def test_a_remote_index_has_the_files_of_a_local_one(
    either_way: None, bucket: Bucket, remote_index: SmallIndex, small_index: SmallIndex
) -> None:
    local = {
        f"index/{path.relative_to(small_index.paths.root)}": path.read_bytes()
        for path in small_index.paths.root.rglob("*")
        if path.is_file() and not path.name.startswith("manifest")
    }
    found = _objects(bucket)
    assert {key: found.get(key) for key in local} == local
    assert sorted(set(found) - set(local)) == [
        "index/manifest-00000001.json",
        "index/manifest-00000002.json",
    ]


def test_a_reader_finds_every_row(bucket: Bucket, remote_index: SmallIndex) -> None:
    reader = IndexReader.open(bucket.url("index"))
    assert [reader.lookup(row.key) for row in remote_index.rows] == [*remote_index.rows]
    assert IndexReader.open(bucket.url("index"), version=1).lookup(remote_index.rows[2].key) is None
    assert reader.document_keys("c") == (remote_index.rows[2].key,)


def test_the_second_open_needs_no_download(
    bucket: Bucket, remote_index: SmallIndex, tmp_path: Path
) -> None:
    IndexReader.open(bucket.url("index")).pin()
    manifest = remote_index.versions[-1]
    names = {info.sha256 for info in (*manifest.packs, manifest.key_table)}
    assert _cached(tmp_path).keys() == names
    for key in bucket.keys("index/packs/"):
        bucket.delete(key)
    reader = IndexReader.open(bucket.url("index"))
    assert [reader.lookup(row.key) for row in remote_index.rows] == [*remote_index.rows]


@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_a_damaged_copy_is_fetched_again(
    bucket: Bucket, remote_index: SmallIndex, tmp_path: Path, damage: str
) -> None:
    IndexReader.open(bucket.url("index")).pin()
    sound = {name: path.read_bytes() for name, path in _cached(tmp_path).items()}
    for name, path in _cached(tmp_path).items():
        data = sound[name]
        path.unlink()
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:] if damage == "flipped" else data[:-1])
    reader = IndexReader.open(bucket.url("index"))
    assert [reader.lookup(row.key) for row in remote_index.rows] == [*remote_index.rows]
    assert {name: path.read_bytes() for name, path in _cached(tmp_path).items()} == sound


@pytest.mark.parametrize("part", ["packs/unit-a", "keys-00000002"])
def test_a_damaged_object_is_named_and_not_kept(
    bucket: Bucket, remote_index: SmallIndex, tmp_path: Path, part: str
) -> None:
    (key,) = bucket.keys(f"index/{part}")
    data = bucket.get(key)
    bucket.put(key, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(IntegrityError, match=f"{bucket.url(key)}: expected .* with sha256"):
        IndexReader.open(bucket.url("index")).pin()
    kept = {path.read_bytes() for path in _cached(tmp_path).values()}
    assert bucket.get(key) not in kept


def test_openers_at_once_share_the_cache(
    bucket: Bucket, remote_index: SmallIndex, tmp_path: Path
) -> None:
    found: list[object] = []

    def read() -> None:
        reader = IndexReader.open(bucket.url("index"))
        found.append([reader.lookup(row.key) for row in remote_index.rows])

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[*remote_index.rows]] * 6
    assert all(not name.startswith(".tmp-") for name in _cached(tmp_path))


def test_a_cache_that_cannot_be_written_is_a_storage_error(
    bucket: Bucket, remote_index: SmallIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    for cache in ("file", "file/below"):
        monkeypatch.setenv("SIFT_CACHE", str(tmp_path / cache))
        with pytest.raises(StorageError, match="expected a folder .* found a file .* SIFT_CACHE"):
            IndexReader.open(bucket.url("index"))
    monkeypatch.setenv("SIFT_CACHE", "/proc/none")
    with pytest.raises(StorageError, match="SIFT_CACHE to another folder"):
        IndexReader.open(bucket.url("index"))


def test_verifying_reads_the_store_whatever_the_cache_holds(
    bucket: Bucket, remote_index: SmallIndex
) -> None:
    report = verify_index(remote_index.paths)
    assert report.ok and report.garbage == () and report.rows == 3
    key = bucket.keys("index/packs/unit-b")[0]
    bucket.put(key, bytes(len(bucket.get(key))))
    problems = [str(problem) for problem in verify_index(remote_index.paths).problems]
    assert len(problems) == 1 and bucket.url(key) in problems[0]


def test_the_first_writer_of_a_name_wins(either_way: None, bucket: Bucket) -> None:
    path = bucket.path("index/file")
    assert write_if_absent(path, b"first")
    assert not write_if_absent(path, b"second")
    assert _objects(bucket) == {"index/file": b"first"}


class _LostAnswer:
    """A client whose first answer was lost on the way: it asked again, and met an object."""

    def __init__(self, stored: bytes) -> None:
        self.stored = stored

    def put_object(self, **request: object) -> None:
        from botocore.exceptions import ClientError

        found = {"Error": {"Code": "PreconditionFailed"}, "ResponseMetadata": {"RetryAttempts": 1}}
        raise ClientError(found, "PutObject")

    def get_object(self, **request: object) -> dict[str, object]:
        return {"Body": io.BytesIO(self.stored)}


def test_a_writer_whose_answer_was_lost_knows_its_own_object(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stored, won in ((b"mine", True), (b"other", False)):
        client = _LostAnswer(stored)
        monkeypatch.setattr("sift_index.formats.remote.s3_client", lambda path, c=client: c)
        assert write_if_absent(bucket.path("index/file"), b"mine") is won


def test_of_many_claims_one_wins(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    _without_boto3(monkeypatch)
    monkeypatch.setattr("random.uniform", lambda low, high: threading.get_ident() % 97 / 97)
    path, wins = bucket.path("index/file"), []

    def write(i: int) -> None:
        if write_if_absent(path, bytes([i]) * 1000):
            wins.append(i)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) == 1
    assert _objects(bucket) == {"index/file": bytes(wins) * 1000}


def test_a_claim_that_was_left_behind_blocks_for_its_lease_only(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_boto3(monkeypatch)
    bucket.put("index/.tmp-file-dead", b"of a writer that was killed")
    monkeypatch.setattr(claims, "PATIENCE_SECONDS", 0)
    with pytest.raises(CommitConflictError, match="run the same command again"):
        write_if_absent(bucket.path("index/file"), b"mine")
    monkeypatch.setattr(claims, "LEASE_SECONDS", -1.0)
    assert write_if_absent(bucket.path("index/file"), b"mine")
    assert file_names(bucket.path("index"), "") == ["file"]


def test_the_slower_of_two_writers_gets_the_retryable_error(
    either_way: None, remote_index: SmallIndex
) -> None:
    patch = pytest.MonkeyPatch()

    def overtaken(*draft: Any, **options: Any) -> Manifest:
        patch.undo()
        delete_documents(remote_index.paths, ["c"])
        return publish_draft(*draft, **options)

    patch.setattr("sift_index.formats.deletion.publish_draft", overtaken)
    with pytest.raises(CommitConflictError) as caught:
        delete_documents(remote_index.paths, ["a"])
    assert caught.value.details["retryable"]
    reader = IndexReader.open(remote_index.paths.root)
    assert sorted(reader.document_ids()) == ["a", "ab"]
    assert reader.manifest.version == 3 and verify_index(remote_index.paths).ok


def test_deleting_compacting_and_collecting_leave_what_a_folder_would_have(
    bucket: Bucket, remote_index: SmallIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = remote_index.paths
    assert delete_documents(paths, ["ab"]) is not None
    assert compact(paths) is not None
    monkeypatch.setattr("time.time", lambda: time.monotonic() + 4e9)  # a grace later
    sweep = collect_garbage(paths, keep=1)
    assert sweep.versions == (1, 2, 3) and versions(paths) == [4]
    report = verify_index(paths)
    assert report.ok and report.garbage == () and report.rows == 2
    assert [facts.version for facts in history(paths)] == [4]
    kept = [key.removeprefix("index/") for key in bucket.keys()]
    pack = f"packs/{IndexReader.open(paths.root).manifest.packs[0].name}"
    assert kept == ["keys-00000004.arrow", "manifest-00000004.json", pack]


def test_what_was_just_written_counts_as_young(remote_index: SmallIndex) -> None:
    assert delete_documents(remote_index.paths, ["ab"]) is not None
    path = remote_index.paths.pack_path("loser-0123456789abcdef.arrow")
    write_if_absent(path, b"of a build that runs")
    assert f"packs/{path.name}" in collect_garbage(remote_index.paths, keep=1).young
    assert verify_index(remote_index.paths).ok


def test_using_a_file_again_makes_it_young(bucket: Bucket) -> None:
    path = bucket.path("index/file")
    assert not freshen(path)
    bucket.put("index/file", b"same")
    before = bucket.client.head_object(Bucket=bucket.name, Key="index/file")["LastModified"]
    while True:  # dates have whole seconds
        assert freshen(path) and read_file(path) == b"same"
        after = bucket.client.head_object(Bucket=bucket.name, Key="index/file")["LastModified"]
        if after > before:
            return
        time.sleep(0.2)


def test_failures_are_recorded_and_forgotten(bucket: Bucket) -> None:
    paths = IndexPaths(bucket.path("index"))
    for reason in ("unreadable", "empty"):
        record_failure(paths, FailedDocument("a.txt", reason))
    assert read_failures(paths) == [FailedDocument("a.txt", "empty")]
    clear_failure(paths, "a.txt")
    clear_failure(paths, "a.txt")
    assert read_failures(paths) == []


def test_an_export_of_a_remote_index_comes_back_whole(
    remote_index: SmallIndex, tmp_path: Path
) -> None:
    export_index(remote_index.paths, tmp_path / "out.parquet")
    assert import_index(tmp_path / "out.parquet", tmp_path / "back").identical
    assert IndexReader.open(tmp_path / "back").lookup(remote_index.rows[0].key)


def test_a_folder_of_texts_cannot_appear_at_once(bucket: Bucket) -> None:
    with pytest.raises(UsageError, match="build into a folder and upload it"):
        write_folder_if_absent(bucket.path("index/probes"), {"a": b"x"})
    assert bucket.keys() == []


def test_a_lost_object_is_damage_that_is_named(bucket: Bucket, remote_index: SmallIndex) -> None:
    (key,) = bucket.keys("index/packs/unit-a")
    bucket.delete(key)
    with pytest.raises(IntegrityError, match=bucket.url(key)):
        IndexReader.open(bucket.url("index")).pin()
    with pytest.raises(IntegrityError, match=bucket.url(key)):
        read_receipts(remote_index.paths)
    with pytest.raises(IntegrityError, match="an object"):
        regular_size(bucket.path("index/packs"))


def test_no_index_and_no_bucket_are_told_apart(bucket: Bucket) -> None:
    bucket.put("full/note.txt", b"x")
    cases = {
        bucket.url("full"): "a prefix without manifests",
        bucket.url("empty"): "nothing there",
        "s3://bucket-that-is-not/index": "no bucket bucket-that-is-not",
    }
    for url, found in cases.items():
        with pytest.raises(IndexNotFoundError, match=found):
            IndexReader.open(url)
    for write in (
        lambda paths: paths.create(),
        lambda paths: write_if_absent(paths.root / "file", b"x"),
    ):
        with pytest.raises(StorageError, match="bucket"):
            write(IndexPaths(RemotePath("s3", "bucket-that-is-not/index")))


def test_a_silent_endpoint_is_an_error_in_seconds(
    either_way: None, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    started = time.monotonic()
    with pytest.raises(StorageError, match="check the network and the endpoint"):
        IndexReader.open(bucket.url("index"))
    with pytest.raises(StorageError, match="check the network and the endpoint"):
        write_if_absent(bucket.path("index/file"), b"x")
    assert time.monotonic() - started < 30


def test_a_password_in_an_endpoint_is_not_repeated() -> None:
    error = OSError("cannot connect to http://user:secret@host:9000/bucket")
    found = str(buckets.refused(RemotePath("s3", "bucket/index"), error))
    assert "http://***@host:9000/bucket" in found and "secret" not in found


def test_missing_credentials_are_told(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put("index/manifest-00000001.json", b"{}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    assert "AWS_SESSION_TOKEN" not in os.environ
    with pytest.raises(StorageError, match="give credentials"):
        IndexReader.open(bucket.url("index"))


def test_a_profile_that_is_none_is_said(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    buckets._client.cache_clear()
    with pytest.raises(StorageError, match="correct AWS_PROFILE"):
        buckets.s3_client(RemotePath("s3", f"{bucket.name}/index"))


def test_reads_and_writes_go_to_one_endpoint(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shared = tmp_path / "config"
    shared.write_text("[default]\nendpoint_url = http://127.0.0.1:9\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(shared))
    buckets._client.cache_clear()
    client = buckets.s3_client(RemotePath("s3", f"{bucket.name}/index"))
    assert client is not None
    assert client.meta.endpoint_url == os.environ["AWS_ENDPOINT_URL"].rstrip("/")
