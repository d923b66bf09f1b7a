"""The status of an index: what runs, what waits, what failed, and how long units took."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sift_index.errors import IndexNotFoundError, IntegrityError
from sift_index.formats.buildstate import BuildState, write_state
from sift_index.formats.failures import FailedDocument, record_failure
from sift_index.formats.packs import write_pack
from sift_index.formats.receipts import Receipt, commit
from sift_index.formats.store import IndexPaths
from sift_index.pipelines.status import IndexStatus, index_status

BUILD = "0" * 32


@pytest.fixture
def paths(tmp_path: Path) -> IndexPaths:
    return IndexPaths(tmp_path / "index")


def a_build(build: str, state: str = "running", minutes: float = 0.0) -> BuildState:
    moment = (datetime.now(UTC) - timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return BuildState(
        build, "node-1", 1, "sift-index build", "c", "m", "probe", "s", moment, moment, state
    )


def commit_empty(
    paths: IndexPaths, number: int, failed: tuple[FailedDocument, ...] = (), **stats: float | str
) -> None:
    unit = f"{number:032x}"
    pack = write_pack(paths, unit, BUILD, [])
    commit(paths, Receipt(unit, BUILD, pack, (), 100, failed, stats))


def look(paths: IndexPaths, receipts: int = 100, failed: int | None = None) -> IndexStatus:
    return index_status(paths, receipts, failed)


def test_where_nothing_was_built_that_is_said(paths) -> None:
    with pytest.raises(IndexNotFoundError, match="found no such folder"):
        look(paths)
    paths.create()
    with pytest.raises(IndexNotFoundError, match="a folder without manifests"):
        look(paths)


@pytest.mark.parametrize(
    ("builds", "state"),
    [
        ([("running", 0)], "running"),
        ([("running", 5)], "dead"),
        ([("finished", 5)], "finished"),
        ([("running", 50), ("interrupted", 5)], "interrupted"),
        ([("running", 0), ("failed", -0.01)], "running"),  # one of two at once failed
    ],
)
def test_the_state_is_that_of_who_runs_else_of_the_last(paths, builds, state) -> None:
    for number, (said, minutes) in enumerate(builds):
        write_state(paths, a_build(f"{number:016x}", said, minutes))
    found = look(paths)
    assert found.state == state and len(found.builds) == len(builds)
    assert found.version is None and found.committed_units == 0


def test_committed_units_wait_for_a_version(paths) -> None:
    for number in range(3):
        commit_empty(paths, number, seconds=float(number))
    found = look(paths)
    assert (found.state, found.committed_units, found.unpublished_units) == ("none", 3, 3)
    assert (found.receipts_read, found.timing.seconds_max) == (3, 2.0)


def test_of_very_many_receipts_a_part_is_read(paths) -> None:
    for number in range(10):
        commit_empty(paths, number, seconds=float(number))
    found = look(paths, receipts=5)
    assert (found.committed_units, found.receipts_read, found.timing.units) == (10, 5, 5)
    assert [unit.seconds for unit in found.timing.slowest] == [8.0, 6.0, 4.0, 2.0, 0.0]
    none = look(paths, receipts=0)
    assert (none.receipts_read, none.timing.units) == (0, 0)


def test_a_damaged_receipt_is_counted_for_that_is_what_status_is_for(paths) -> None:
    for number in range(3):
        commit_empty(paths, number, seconds=1.0)
    os.unlink(next(paths.packs.iterdir()))
    found = look(paths)
    assert (found.receipts_read, found.receipts_damaged, found.timing.units) == (2, 1, 2)


def test_failed_documents_come_with_their_reasons(paths) -> None:
    write_state(paths, a_build("a" * 16))
    for number in range(4):
        record_failure(paths, FailedDocument(f"{number}.txt", f"reason {number}"))
    found = look(paths)
    assert [f.source for f in found.failed] == [f"{number}.txt" for number in range(4)]
    some = look(paths, failed=2)
    assert (len(some.failed), some.failed_documents) == (2, 4)
    next(paths.failed.iterdir()).write_bytes(b"{}")
    with pytest.raises(IntegrityError):
        look(paths)


def test_documents_that_units_left_out_show_before_the_build_ends(paths) -> None:
    known, new = FailedDocument("a.txt", "unreadable"), FailedDocument("b.txt", "it changed")
    record_failure(paths, known)
    commit_empty(paths, 1, (new, known), seconds=1.0)
    commit_empty(paths, 2, (new,), seconds=1.0)
    found = look(paths)
    assert (found.failed, found.failed_documents) == ((known, new), 2)
    assert look(paths, failed=0).failed == ()


def test_json_says_what_silence_means(paths) -> None:
    write_state(paths, a_build("a" * 16, "running", 5))
    (build,) = look(paths).to_json()["builds"]
    assert build["state"] == "dead" and 299 <= build["silent_seconds"] <= 320
