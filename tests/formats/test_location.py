from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from sift_index.formats.errors import UsageError
from sift_index.formats.location import RemotePath, anchored, parse_location
from sift_index.formats.store import IndexPaths


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("corpus.sift", Path("corpus.sift")),
        ("bucket/prefix", Path("bucket/prefix")),
        ("C:/index", Path("C:/index")),
        ("a:b/index", Path("a:b/index")),
        (Path("corpus.sift"), Path("corpus.sift")),
        ("file:///data/my%20index", Path("/data/my index")),
        ("s3://bucket/a/b.sift/", RemotePath("s3", "bucket/a/b.sift")),
        ("S3://bucket", RemotePath("s3", "bucket")),
        ("gs://bucket/index", RemotePath("gs", "bucket/index")),
        (RemotePath("s3", "b/x"), RemotePath("s3", "b/x")),
    ],
)
def test_what_a_user_gives_becomes_a_path(given: str | Path, expected: object) -> None:
    assert parse_location(given) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "empty text; use . for this folder"),
        ("ftp://host/index", "scheme of s3, gs, file, found ftp"),
        ("file://host/index", "found file"),
        (Path("s3://bucket/index"), "give the URL as text"),
        ("s3:///index", "s3://bucket/prefix, found another form"),
        ("s3://", "another form"),
        ("s3://bucket//index", "another form"),
        ("s3://bucket/../other", "another form"),
        ("s3://bucket/index?endpoint_override=x", "leave out keys and queries"),
        ("folder\0", "a zero byte in it"),
        ("s3://bucket/./index", "another form"),
    ],
)
def test_what_names_no_place_is_refused(given: str | Path, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_location(given)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("s3://key:secret@bucket/index", "s3://***@bucket/index:"),
        ("s3://key:sec/re+t@se@bucket/index", "s3://***@bucket/index:"),
        ("s3://secret@bucket/index", "s3://***@bucket/index:"),
        ("gs://key:secret@bucket/index", "gs://***@bucket/index:"),
        (Path("s3://key:secret@bucket/index"), "s3:/***@bucket/index:"),
        ("ftp://key:secret@host/index", "ftp://***@host/index:"),
        ("file://key:secret@host/index", "file://***@host/index:"),
        ("https://host/index?X-Amz-Signature=secret", "https://host/index:"),
        ("s3://bucket/a@b//index", "s3://bucket/a@b//index:"),
    ],
)
def test_messages_repeat_no_password(given: str | Path, shown: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_location(given)
    assert str(caught.value).startswith(shown)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("path", ["x" * 300, "a/" * 3000, "file:///" + "x" * 300])
def test_a_path_longer_than_the_system_allows_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="too long; give a shorter one") as caught:
        parse_location(path)
    assert len(str(caught.value)) < 200


def test_a_remote_path_has_the_operations_of_a_local_one() -> None:
    remote = RemotePath("s3", "bucket/index") / "packs" / "unit-1.arrow"
    local = Path("bucket/index") / "packs" / "unit-1.arrow"
    assert str(remote) == "s3://bucket/index/packs/unit-1.arrow"
    assert remote.bucket == "bucket"
    assert (remote.name, remote.stem) == (local.name, local.stem)
    assert str(remote.parent) == f"s3://{local.parent}"
    assert str(remote.with_name("x")) == f"s3://{local.with_name('x')}"
    assert pickle.loads(pickle.dumps(remote)) == remote


def test_names_inside_an_index_do_not_depend_on_where_it_lies() -> None:
    for root in (Path("some/index"), RemotePath("s3", "bucket/index")):
        paths = IndexPaths(root)
        assert paths.name_of(paths.pack_path("u-1.arrow")) == "packs/u-1.arrow"
        assert paths.name_of(paths.manifest_path(3)) == "manifest-00000003.json"


def test_workers_in_another_folder_see_the_same_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert anchored(Path("index")) == tmp_path / "index"
    assert anchored(RemotePath("s3", "bucket/index")) == RemotePath("s3", "bucket/index")
