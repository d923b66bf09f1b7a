from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sift_index.formats.canonical import dump_checked
from sift_index.formats.errors import (
    CommitConflictError,
    FeatureError,
    IndexNotFoundError,
    IntegrityError,
    UsageError,
)
from sift_index.formats.manifest import (
    current_version,
    publish_manifest,
    read_manifest,
    require_writable,
    versions,
)
from sift_index.formats.store import TEMP_PREFIX, IndexPaths
from tests.formats.files import cuts, flips, rewrite

if TYPE_CHECKING:
    from tests.formats.conftest import SmallIndex


def test_every_version_can_be_read(small_index: SmallIndex) -> None:
    paths = small_index.paths
    assert versions(paths) == [1, 2]
    assert current_version(paths) == 2
    assert (read_manifest(paths, 1), read_manifest(paths)) == small_index.versions


def test_a_taken_number_is_a_conflict(small_index: SmallIndex) -> None:
    before = small_index.paths.manifest_path(2).read_bytes()
    with pytest.raises(CommitConflictError, match="version 2.*run the same command again"):
        publish_manifest(small_index.paths, replace(small_index.versions[1], writer="other"))
    assert small_index.paths.manifest_path(2).read_bytes() == before


@pytest.mark.parametrize("version", [0, -1, 100_000_000])
def test_a_number_without_a_name_is_refused(small_index: SmallIndex, version: int) -> None:
    with pytest.raises(UsageError, match="version"):
        publish_manifest(small_index.paths, replace(small_index.versions[0], version=version))


def test_no_index_says_what_was_expected(paths: IndexPaths) -> None:
    assert current_version(paths) is None
    with pytest.raises(IndexNotFoundError, match="manifest-00000001.json.*without manifests"):
        read_manifest(paths)
    with pytest.raises(IndexNotFoundError, match="no such folder"):
        read_manifest(IndexPaths(paths.root / "none"))


@pytest.mark.parametrize("version", [0, 3])
def test_a_missing_version_names_those_there(small_index: SmallIndex, version: int) -> None:
    with pytest.raises(IndexNotFoundError, match=f"version {version}.*versions 1 to 2; choose one"):
        read_manifest(small_index.paths, version)


def test_leftovers_are_no_versions(small_index: SmallIndex) -> None:
    for name in (
        f"{TEMP_PREFIX}manifest-00000009.json",
        "manifest-9.json",
        "manifest-00000000.json",
    ):
        rewrite(small_index.paths.root / name, b"")
    assert versions(small_index.paths) == [1, 2]


def test_a_damaged_newest_version_is_never_passed_over(small_index: SmallIndex) -> None:
    path = small_index.paths.manifest_path(2)
    data = path.read_bytes()
    for damaged in (*flips(data), *cuts(data)):
        rewrite(path, damaged)
        with pytest.raises(IntegrityError, match="manifest-00000002.json"):
            read_manifest(small_index.paths)


def _forge(index: SmallIndex, field: str, value: Any) -> None:
    document = index.versions[1].to_json()
    target: Any = document
    *outer, last = field.split(".")
    for name in outer:
        target = target[int(name) if name.isdigit() else name]
    target[last] = value
    rewrite(index.paths.manifest_path(2), dump_checked(document))


@pytest.mark.parametrize("name", ["../x.arrow", "/etc/passwd", "a/b", "..", "", ".x", "a\\b"])
@pytest.mark.parametrize("field", ["key_table.name", "packs.0.name"])
def test_a_name_that_is_a_path_is_refused(small_index: SmallIndex, field: str, name: str) -> None:
    _forge(small_index, field, name)
    with pytest.raises(IntegrityError, match="plain file name"):
        read_manifest(small_index.paths)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 1),
        ("version", "2"),
        ("packs", {}),
        ("packs.0.bytes", -1),
        ("packs.0.sha256", "x" * 64),
        ("packs.0.rows", None),
        ("key_table", None),
        ("counts", []),
        ("counts.keys", 1.5),
        ("fingerprint", None),
        ("fingerprint.serve", []),
        ("units", [1]),
        ("quality", "good"),
        ("created", None),
        ("reader_features", "x"),
        ("build_digest", "0" * 32),
    ],
)
def test_a_forged_field_is_refused(small_index: SmallIndex, field: str, value: Any) -> None:
    _forge(small_index, field, value)
    with pytest.raises(IntegrityError, match="manifest-00000002.json"):
        read_manifest(small_index.paths)


def test_a_pack_named_twice_is_refused(small_index: SmallIndex) -> None:
    pack = small_index.versions[1].packs[0].to_json()
    _forge(small_index, "packs", [pack, pack])
    with pytest.raises(IntegrityError, match="each pack once"):
        read_manifest(small_index.paths)


def test_an_unknown_reader_feature_is_named(small_index: SmallIndex) -> None:
    _forge(small_index, "reader_features", ["tree-masks"])
    with pytest.raises(FeatureError, match="tree-masks.*upgrade"):
        read_manifest(small_index.paths)


def test_a_newer_format_is_named_before_anything_else_is_read(small_index: SmallIndex) -> None:
    _forge(small_index, "format_version", 2)
    with pytest.raises(FeatureError, match="found format version 2"):
        read_manifest(small_index.paths)


def test_an_unknown_writer_feature_only_stops_writers(small_index: SmallIndex) -> None:
    _forge(small_index, "writer_features", ["sealed"])
    manifest = read_manifest(small_index.paths)
    with pytest.raises(FeatureError, match="sealed"):
        require_writable(manifest)


def test_a_field_from_the_future_is_passed_over(small_index: SmallIndex) -> None:
    _forge(small_index, "note", {"any": "thing"})
    assert read_manifest(small_index.paths) == small_index.versions[1]
