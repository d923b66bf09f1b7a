"""Using an object again while `gc` removes it: nothing comes back without what it names."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from sift_index.formats import buckets
from sift_index.formats.compaction import compact
from sift_index.formats.deletion import delete_documents
from sift_index.formats.errors import StorageError
from sift_index.formats.garbage import collect_garbage
from sift_index.formats.location import RemotePath
from sift_index.formats.receipts import reuse_receipt
from sift_index.formats.store import IndexPaths, freshen, remove_all
from sift_index.formats.verify import verify_index
from tests.formats.conftest import SmallIndex
from tests.object_store import Bucket

UNIT = "unit-a"


@pytest.fixture
def littered(remote_index: SmallIndex, monkeypatch: pytest.MonkeyPatch) -> IndexPaths:
    """An index with a receipt that `gc` removes together with its pack."""
    paths = remote_index.paths
    assert delete_documents(paths, ["ab"]) is not None
    assert compact(paths) is not None
    monkeypatch.setattr("time.time", lambda: time.monotonic() + 4e9)  # a grace later
    return paths


class _Client:
    """A client that does something between reading an object and writing it again."""

    def __init__(self, path: RemotePath) -> None:
        inner: Any = buckets.s3_client(path)
        self.inner = inner
        self.get_object = inner.get_object
        self.conditions: list[str] = []

    def put_object(self, **request: Any) -> Any:
        self.conditions.append(request["IfMatch"])
        self.meanwhile()
        return self.inner.put_object(**request)

    def meanwhile(self) -> None:
        raise NotImplementedError


def _use(client: _Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sift_index.formats.remote.s3_client", lambda path: client)


def test_a_receipt_that_gc_removes_while_it_is_used_again_stays_away(
    bucket: Bucket, littered: IndexPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Swept(_Client):
        def meanwhile(self) -> None:
            collect_garbage(littered, keep=1)

    assert bucket.keys(f"index/commits/{UNIT}") and bucket.keys(f"index/packs/{UNIT}")
    _use(Swept(littered.root), monkeypatch)
    assert reuse_receipt(littered, UNIT) is None
    assert bucket.keys(f"index/commits/{UNIT}") == bucket.keys(f"index/packs/{UNIT}") == []
    assert verify_index(littered).ok


@pytest.mark.parametrize("conditional", [True, False])
def test_a_receipt_that_comes_back_during_gc_keeps_its_pack(
    bucket: Bucket, littered: IndexPaths, monkeypatch: pytest.MonkeyPatch, conditional: bool
) -> None:
    if not conditional:
        monkeypatch.setattr(buckets, "find_spec", lambda name: None)
    receipt = bucket.get(f"index/commits/{UNIT}.json")

    def remove(found: Sequence[RemotePath]) -> None:
        remove_all(found)
        if littered.receipt_path(UNIT) in found:  # by a writer that had read it, unconditionally
            bucket.put(f"index/commits/{UNIT}.json", receipt)

    monkeypatch.setattr("sift_index.formats.garbage.remove_all", remove)
    collect_garbage(littered, keep=1)
    again = reuse_receipt(littered, UNIT)
    assert again is not None and bucket.keys(f"index/packs/{again.pack.name}")
    assert verify_index(littered).ok


def test_an_object_that_another_writer_used_too_is_used_again(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Overtaken(_Client):
        def meanwhile(self) -> None:
            if len(self.conditions) == 1:
                bucket.put("index/file", b"after")

    bucket.put("index/file", b"before")
    client = Overtaken(bucket.path("index"))
    _use(client, monkeypatch)
    assert freshen(bucket.path("index/file"))
    assert len(set(client.conditions)) == 2 and bucket.get("index/file") == b"after"


@pytest.mark.parametrize(("code", "done"), [("NotImplemented", True), ("AccessDenied", False)])
def test_a_store_that_knows_no_condition_is_written_to_all_the_same(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, code: str, done: bool
) -> None:
    from botocore.exceptions import ClientError

    class Refusing(_Client):
        def meanwhile(self) -> None:
            raise ClientError({"Error": {"Code": code}}, "PutObject")

    bucket.put("index/file", b"same")
    _use(Refusing(bucket.path("index")), monkeypatch)
    with nullcontext() if done else pytest.raises(StorageError, match="AccessDenied"):
        assert freshen(bucket.path("index/file"))
