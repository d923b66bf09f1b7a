"""What a build says of itself: read back exactly, refused when damaged, kept while it is young."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from sift_index.formats.buildstate import (
    DEAD,
    RUNNING,
    SILENT_SECONDS,
    STATES,
    BuildState,
    forget_states,
    read_states,
    state_path,
    write_state,
)
from sift_index.formats.canonical import dump_checked
from sift_index.formats.errors import IntegrityError
from sift_index.formats.garbage import collect_garbage
from sift_index.formats.store import TEMP_PREFIX, IndexPaths
from sift_index.formats.verify import verify_index
from tests.formats.files import cuts, flips, rewrite

if TYPE_CHECKING:
    from tests.formats.conftest import SmallIndex
    from tests.object_store import Bucket

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
HOUR = 3600.0


def stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def a_state(build: str = "0123456789abcdef", **changes: object) -> BuildState:
    state = BuildState(
        build=build,
        host="node-1",
        pid=4711,
        command="sift-index build corpus --model m",
        corpus="corpus",
        model="m",
        policy="probe",
        software="sift-index 0.1.0",
        started=stamp(NOW - timedelta(hours=1)),
        updated=stamp(NOW),
    )
    return replace(state, **changes)  # type: ignore[arg-type]


def live(build: str, **changes: object) -> BuildState:
    return a_state(build, updated=stamp(datetime.now(UTC)), **changes)


def test_a_state_comes_back_as_it_was_and_replaces_itself(paths: IndexPaths) -> None:
    first = a_state(message="„ä“ and [markup]", units=7, tokens=2**40)
    write_state(paths, first)
    assert read_states(paths) == [first]
    second = replace(first, units_done=3, updated=stamp(NOW + timedelta(seconds=10)))
    write_state(paths, second)
    assert read_states(paths) == [second]
    assert os.listdir(paths.state) == ["0123456789abcdef.json"]


def test_the_one_that_wrote_last_comes_last(paths: IndexPaths) -> None:
    old = a_state("f" * 16, updated=stamp(NOW - timedelta(hours=2)))
    for state in (a_state("a" * 16), old):
        write_state(paths, state)
    assert [state.build for state in read_states(paths)] == ["f" * 16, "a" * 16]


def test_none_was_ever_written(paths: IndexPaths) -> None:
    assert read_states(paths) == []
    forget_states(paths, "a" * 16)
    assert not paths.state.exists()


@pytest.mark.parametrize(("seconds", "verdict"), [(SILENT_SECONDS, RUNNING), (61, DEAD)])
def test_silence_for_a_minute_means_dead(seconds: float, verdict: str) -> None:
    assert a_state().verdict(NOW + timedelta(seconds=seconds)) == verdict


@pytest.mark.parametrize("state", [state for state in STATES if state != RUNNING])
def test_a_build_that_said_how_it_ended_is_not_dead(state: str) -> None:
    assert a_state(state=state).verdict(NOW + timedelta(days=9)) == state


def test_the_time_left_follows_the_speed() -> None:
    assert a_state(tokens=1000, tokens_done=400, tokens_per_second=20).eta_seconds == 30
    assert a_state(tokens=1000).eta_seconds is None
    assert a_state(tokens=1000, tokens_per_second=1, state="failed").eta_seconds is None


def test_every_changed_or_cut_byte_is_found(paths: IndexPaths) -> None:
    write_state(paths, a_state())
    path = state_path(paths, a_state().build)
    data = path.read_bytes()
    for damaged in (*flips(data), *cuts(data)):
        rewrite(path, damaged)
        with pytest.raises(IntegrityError, match="remove this file"):
            read_states(paths)


@pytest.mark.parametrize(
    "change",
    [
        {"state": "asleep"},
        {"updated": "yesterday"},
        {"started": "2026-05-01T12:00:00"},  # no zone: of which clock?
        {"pid": -1},
        {"units": "7"},
        {"build": "f" * 16},
        {"host": None},
    ],
)
def test_an_impossible_field_is_named_and_a_file_nobody_needs_can_go(
    paths: IndexPaths, change: dict[str, object]
) -> None:
    write_state(paths, a_state())
    path = state_path(paths, a_state().build)
    rewrite(path, dump_checked({**a_state().to_json(), **change}))
    with pytest.raises(IntegrityError, match="remove this file"):
        read_states(paths)
    forget_states(paths, "a" * 16)
    assert read_states(paths) == []


def test_a_later_build_forgets_what_is_over_and_leaves_what_runs(paths: IndexPaths) -> None:
    mine, other = live("1" * 16), live("2" * 16)
    gone = [a_state("3" * 16), live("4" * 16, state="finished"), live("5" * 16, state="failed")]
    for state in (mine, other, *gone):
        write_state(paths, state)
    (paths.state / "notes.json").write_text("mine")
    forget_states(paths, mine.build)
    assert {state.build for state in read_states(paths)} == {mine.build, other.build}
    assert (paths.state / "notes.json").exists()


def test_verify_and_gc_leave_a_young_state_alone(small_index: SmallIndex) -> None:
    paths = small_index.paths
    before = verify_index(paths)
    write_state(paths, a_state())
    assert verify_index(paths) == before
    sweep = collect_garbage(paths, 2)
    assert (sweep.files, sweep.young) == ((), ())
    assert read_states(paths) == [a_state()]


def test_gc_removes_old_states_and_what_a_killed_write_left(small_index: SmallIndex) -> None:
    paths = small_index.paths
    for build in ("a" * 16, "b" * 16):
        write_state(paths, a_state(build))
    half = paths.state / f"{TEMP_PREFIX}1-ff"
    half.write_bytes(b"half")
    foreign = paths.state / "notes.json"
    foreign.write_text("mine")
    for path in (state_path(paths, "a" * 16), half, foreign):
        os.utime(path, (0, 0))
    would = collect_garbage(paths, 2, grace=HOUR, dry_run=True)
    assert set(would.files) == {f"state/{'a' * 16}.json", f"state/{TEMP_PREFIX}1-ff"}
    collect_garbage(paths, 2, grace=HOUR)
    assert {path.name for path in paths.state.iterdir()} == {f"{'b' * 16}.json", "notes.json"}


def test_a_linked_folder_is_refused(small_index: SmallIndex, tmp_path) -> None:
    (tmp_path / "elsewhere").mkdir()
    small_index.paths.state.symlink_to(tmp_path / "elsewhere")
    (problem,) = verify_index(small_index.paths).problems
    assert "found a link" in str(problem)


def test_states_in_an_object_store(bucket: Bucket) -> None:
    paths = IndexPaths(bucket.path("index"))
    paths.create()
    mine, dead = live("1" * 16), a_state("2" * 16)
    for state in (mine, dead, mine):
        write_state(paths, state)
    assert read_states(paths) == [dead, mine]
    assert bucket.keys("index/state") == [f"index/state/{n * 16}.json" for n in "12"]
    forget_states(paths, mine.build)
    assert read_states(paths) == [mine]
