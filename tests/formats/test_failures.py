from __future__ import annotations

import pytest

from sift_index.formats.errors import IntegrityError
from sift_index.formats.failures import (
    FailedDocument,
    clear_failure,
    failure_path,
    read_failures,
    record_failure,
)
from sift_index.formats.location import Location
from sift_index.formats.store import IndexPaths, read_file

ODD = ["file:///a/b#3", "../../etc/passwd", "", "é\0\n", "x" * 10_000]


def test_records_are_listed_until_cleared(paths: IndexPaths) -> None:
    for source in ODD:
        record_failure(paths, FailedDocument(source, f"why {source}"))
    assert [r.source for r in read_failures(paths)] == sorted(ODD)
    assert {failure_path(paths, source).parent for source in ODD} == {paths.failed}
    clear_failure(paths, ODD[0])
    clear_failure(paths, "never recorded")
    assert [r.source for r in read_failures(paths)] == sorted(ODD[1:])


def test_the_newest_reason_counts(paths: IndexPaths) -> None:
    record_failure(paths, FailedDocument("a", "one"))
    record_failure(paths, FailedDocument("a", "two"))
    assert read_failures(paths) == [FailedDocument("a", "two")]


def test_a_changed_record_is_found(paths: IndexPaths) -> None:
    path = record_failure(paths, FailedDocument("a", "one"))
    path.write_bytes(path.read_bytes().replace(b"one", b"two"))
    with pytest.raises(IntegrityError, match=rf"{path.name}.*remove this file"):
        read_failures(paths)


def test_a_record_that_another_build_forgets_meanwhile_is_left_out(
    paths: IndexPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    for source in ("a", "b"):
        record_failure(paths, FailedDocument(source, "one"))

    def too_late(path: Location) -> bytes:
        clear_failure(paths, "a")
        return read_file(path)

    monkeypatch.setattr("sift_index.formats.failures.read_file", too_late)
    assert read_failures(paths) == [FailedDocument("b", "one")]


def test_a_record_under_another_name_is_found(paths: IndexPaths) -> None:
    path = record_failure(paths, FailedDocument("a", "one"))
    path.rename(path.with_name("other.json"))
    with pytest.raises(IntegrityError, match="source in its name"):
        read_failures(paths)
