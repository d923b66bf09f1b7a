"""Objects too large for one request: written whole in parts, by one writer, and no part is left.

Parts are as small here as S3 has them, 5 MiB; only the last may be smaller.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from sift_index.formats import buckets, remote, uploads
from sift_index.formats.compaction import compact
from sift_index.formats.deletion import delete_documents
from sift_index.formats.errors import StorageError
from sift_index.formats.store import freshen, replace_atomically, write_if_absent
from sift_index.formats.verify import verify_index
from tests.formats.conftest import SmallIndex
from tests.object_store import Bucket, Fault

PART = 5 << 20
DATA = random.Random(0).randbytes(2 * PART + 1000)
OTHER = DATA[::-1]
NAME = "index/file"


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "LARGE_BYTES", PART)
    monkeypatch.setattr(uploads, "PART_BYTES", PART)


@pytest.fixture
def without_boto3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "find_spec", lambda name: None)


class _Client:
    """The client that writes, with calls that tests put in the place of its own."""

    def __init__(self, bucket: Bucket, **calls: Callable[..., Any]) -> None:
        self._inner: Any = buckets.s3_client(bucket.path("index"))
        self.__dict__.update(calls)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _use(monkeypatch: pytest.MonkeyPatch, client: _Client) -> None:
    monkeypatch.setattr("sift_index.formats.remote.s3_client", lambda path: client)


def _refusal(code: str, retries: int = 0) -> Exception:
    from botocore.exceptions import ClientError

    answer = {"Error": {"Code": code}, "ResponseMetadata": {"RetryAttempts": retries}}
    return ClientError(answer, "CompleteMultipartUpload")


def _holds(bucket: Bucket, data: bytes) -> bool:
    """Say whether the object has these bytes; of many, a failed comparison would take a minute."""
    return bucket.get(NAME) == data


def _parts(bucket: Bucket) -> int:
    """The number behind the dash of the tag that S3 gives to joined parts; 0 without one."""
    tag = bucket.client.head_object(Bucket=bucket.name, Key=NAME)["ETag"].strip('"')
    return int(tag.partition("-")[2] or 0)


@pytest.mark.parametrize(
    ("size", "parts"), [(PART, 0), (PART + 1, 2), (2 * PART, 2), (len(DATA), 3)]
)
def test_an_object_is_written_whole(bucket: Bucket, size: int, parts: int) -> None:
    assert write_if_absent(bucket.path(NAME), DATA[:size])
    assert _holds(bucket, DATA[:size]) and _parts(bucket) == parts
    assert bucket.uploads() == []


def test_an_index_of_large_objects_is_an_index(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(uploads, "LARGE_BYTES", 0)
    index: SmallIndex = request.getfixturevalue("remote_index")
    assert delete_documents(index.paths, ["ab"]) is not None
    assert compact(index.paths) is not None
    assert verify_index(index.paths).ok and bucket.uploads() == []


def test_a_name_that_is_taken_stays_as_it_is_and_nothing_is_sent(bucket: Bucket) -> None:
    bucket.put(NAME, b"first")
    bucket.log.clear()
    assert not write_if_absent(bucket.path(NAME), DATA)
    assert {found.method for found in bucket.requests()} == {"HEAD"}
    assert bucket.get(NAME) == b"first" and bucket.uploads() == []


def test_of_two_writers_at_once_one_wins(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have sent all parts before either joins them."""
    # That one request is answered after the other is for the store: the server used here does not.
    sent, one = threading.Barrier(2, timeout=60), threading.Lock()

    def join(**request: Any) -> Any:
        sent.wait()
        with one:
            return client._inner.complete_multipart_upload(**request)

    client = _Client(bucket, complete_multipart_upload=join)
    _use(monkeypatch, client)
    won: list[bytes] = []

    def write(data: bytes) -> None:
        if write_if_absent(bucket.path(NAME), data):
            won.append(data)

    threads = [threading.Thread(target=write, args=(data,)) for data in (DATA, OTHER)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and _holds(bucket, won[0])
    assert bucket.uploads() == []


@pytest.mark.parametrize(
    ("method", "query"),
    [("PUT", "partNumber=1"), ("PUT", "partNumber=3"), ("POST", "uploadId=")],
)
def test_a_write_that_fails_leaves_no_object_and_no_parts(
    bucket: Bucket, method: str, query: str
) -> None:
    bucket.faults.append(Fault(method, query))
    with pytest.raises(StorageError, match="BadDigest"):
        write_if_absent(bucket.path(NAME), DATA)
    assert bucket.keys() == bucket.uploads() == []
    assert write_if_absent(bucket.path(NAME), DATA) and _holds(bucket, DATA)


def test_a_writer_that_is_interrupted_leaves_no_parts(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(**request: Any) -> Any:
        if request["PartNumber"] == 2:
            raise KeyboardInterrupt
        return client._inner.upload_part(**request)

    client = _Client(bucket, upload_part=interrupted)
    _use(monkeypatch, client)
    with pytest.raises(KeyboardInterrupt):
        write_if_absent(bucket.path(NAME), DATA)
    assert bucket.keys() == bucket.uploads() == []


def test_parts_that_cannot_be_taken_back_hide_no_error(bucket: Bucket) -> None:
    bucket.faults.extend([Fault("PUT", "partNumber=2"), Fault("DELETE", "uploadId=", code="No")])
    with pytest.raises(StorageError, match="BadDigest"):
        write_if_absent(bucket.path(NAME), DATA)


def test_a_part_that_a_busy_store_refuses_is_sent_again(bucket: Bucket) -> None:
    bucket.faults.append(Fault("PUT", "partNumber=2", 503, "SlowDown"))
    assert write_if_absent(bucket.path(NAME), DATA)
    assert _holds(bucket, DATA) and bucket.uploads() == []


def test_a_conflict_begins_anew(bucket: Bucket) -> None:
    bucket.faults.append(Fault("POST", "uploadId=", 409, "ConditionalRequestConflict"))
    assert write_if_absent(bucket.path(NAME), DATA)
    assert _holds(bucket, DATA) and bucket.uploads() == []


@pytest.mark.parametrize("code", ["NoSuchUpload", "PreconditionFailed"])
def test_a_writer_whose_answer_was_lost_knows_its_own_object(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    def lost(**request: Any) -> Any:
        client._inner.complete_multipart_upload(**request)
        raise _refusal(code, retries=1)

    client = _Client(bucket, complete_multipart_upload=lost)
    _use(monkeypatch, client)
    assert write_if_absent(bucket.path(NAME), DATA)
    assert _holds(bucket, DATA) and bucket.uploads() == []


@pytest.mark.parametrize("stored", [OTHER, DATA[:-1], DATA + b"x"])
def test_another_writers_object_is_not_taken_for_ones_own(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, stored: bytes
) -> None:
    def beaten(code: str) -> Callable[..., Any]:
        def join(**request: Any) -> Any:
            bucket.put(NAME, stored)
            raise _refusal(code, retries=1)

        return join

    _use(monkeypatch, _Client(bucket, complete_multipart_upload=beaten("PreconditionFailed")))
    assert not write_if_absent(bucket.path(NAME), DATA)
    bucket.delete(NAME)
    _use(monkeypatch, _Client(bucket, complete_multipart_upload=beaten("NoSuchUpload")))
    with pytest.raises(StorageError, match="NoSuchUpload"):
        write_if_absent(bucket.path(NAME), DATA)
    assert _holds(bucket, stored) and bucket.uploads() == []


def test_every_part_is_joined_with_the_checksum_that_the_store_has(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 asks for them once an upload was begun with one."""
    begun, joined = list[Any](), list[Any]()

    def begin(**request: Any) -> Any:
        begun.append(request)
        return client._inner.create_multipart_upload(**request)

    def join(**request: Any) -> Any:
        joined.append(request)
        return client._inner.complete_multipart_upload(**request)

    client = _Client(bucket, create_multipart_upload=begin, complete_multipart_upload=join)
    _use(monkeypatch, client)
    assert write_if_absent(bucket.path(NAME), DATA)
    assert [request["ChecksumAlgorithm"] for request in begun] == ["CRC32"]
    assert all(part["ChecksumCRC32"] for part in joined[0]["MultipartUpload"]["Parts"])
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")  # some stores know none
    buckets._client.cache_clear()
    client = _Client(bucket, create_multipart_upload=begin, complete_multipart_upload=join)
    _use(monkeypatch, client)
    bucket.delete(NAME)
    assert write_if_absent(bucket.path(NAME), DATA) and _holds(bucket, DATA)
    assert "ChecksumAlgorithm" not in begun[1]
    buckets._client.cache_clear()


@pytest.mark.parametrize("meanwhile", ["nothing", "removed"])
def test_an_object_is_used_again_under_the_condition_that_it_is_there(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    def join(**request: Any) -> Any:
        conditions.append(request["IfMatch"])
        if meanwhile == "removed":  # what S3 then says; the server used here knows no If-Match
            bucket.delete(NAME)
            raise _refusal("NoSuchKey")
        return client._inner.complete_multipart_upload(**request)

    bucket.put(NAME, DATA)
    tag = bucket.client.head_object(Bucket=bucket.name, Key=NAME)["ETag"]
    conditions: list[str] = []
    client = _Client(bucket, complete_multipart_upload=join)
    _use(monkeypatch, client)
    assert freshen(bucket.path(NAME)) is (meanwhile == "nothing")
    assert conditions == [tag] and bucket.uploads() == []
    assert bucket.keys() == ([NAME] if meanwhile == "nothing" else [])


def test_without_boto3_a_large_claim_is_copied_whole(without_boto3: None, bucket: Bucket) -> None:
    assert write_if_absent(bucket.path(NAME), DATA)
    assert not write_if_absent(bucket.path(NAME), OTHER)
    assert _holds(bucket, DATA) and bucket.keys() == [NAME]


@pytest.mark.parametrize("part", [1, 2])
def test_without_boto3_a_stream_that_is_cut_short_replaces_nothing(
    without_boto3: None, bucket: Bucket, part: int
) -> None:
    """Closing a stream of pyarrow after a failure makes an object of the parts before."""
    data = DATA * 3  # parts of pyarrow have 10 MiB
    bucket.put(NAME, data)
    for write in (lambda path: freshen(path), lambda path: replace_atomically(path, data[::-1])):
        bucket.faults.append(Fault("PUT", f"partNumber={part}"))
        with pytest.raises(StorageError):
            write(bucket.path(NAME))
        assert _holds(bucket, data) and bucket.keys() == [NAME]
    assert freshen(bucket.path(NAME))
    replace_atomically(bucket.path(NAME), data[::-1])
    assert _holds(bucket, data[::-1]) and bucket.keys() == [NAME]


def test_without_boto3_what_s3_does_not_copy_is_refused(
    without_boto3: None, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "COPIED_BYTES", len(DATA) - 1)
    with pytest.raises(StorageError, match=r"install sift-index\[s3\]"):
        write_if_absent(bucket.path(NAME), DATA)
    assert bucket.keys() == []
    assert write_if_absent(bucket.path(NAME), DATA[:-1])
    assert not write_if_absent(bucket.path(NAME), DATA)
