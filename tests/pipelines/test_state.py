"""The heartbeat: written while a build runs and at its end, and never a reason for it to fail."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sift_index.errors import BuildError, BuildInterrupted, FingerprintMismatchError
from sift_index.formats.buildstate import BuildState, read_states, write_state
from sift_index.formats.store import IndexPaths
from sift_index.pipelines import state as module
from sift_index.pipelines.events import BuildEvent
from sift_index.pipelines.state import StateWriter, about
from tests.object_store import Bucket
from tests.pipelines.builds import text, tiny_config, write_corpus

BEAT = 0.05


class Recorder:
    """A progress that keeps what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.numbers: list[tuple[int, ...]] = []

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def note(self, message: str) -> None:
        self.notes.append(message)

    def start(self, units: int, tokens: int) -> None:
        self.numbers.append((units, tokens))

    def update(self, units: int, tokens: int, failures: int) -> None:
        self.numbers.append((units, tokens, failures))


@pytest.fixture
def paths(tmp_path: Path) -> IndexPaths:
    return IndexPaths(tmp_path / "index")


def a_writer(paths: IndexPaths, progress: Recorder | None = None, beat: float = BEAT):
    config = tiny_config(Path("corpus"), paths.root, Path("model"))
    return StateWriter(paths, about(config), progress or Recorder(), beat)


def only(paths: IndexPaths) -> BuildState:
    (state,) = read_states(paths)
    return state


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(BEAT)


def test_a_build_is_described_while_it_runs(paths) -> None:
    with a_writer(paths) as writer:
        paths.create()
        writer.accept()
        first = only(paths)
        assert (first.state, first.pid, first.model) == ("running", os.getpid(), "model")
        writer.note("loading")
        writer.start(4, 400)
        writer.update(1, 100, 2)
        wait_for(lambda: only(paths).units_done == 1)
        found = only(paths)
        assert (found.units, found.tokens, found.tokens_done, found.failures) == (4, 400, 100, 2)
        assert found.message == "loading" and found.build == first.build
        assert found.verdict() == "running"
    assert only(paths).state == "finished"


def test_everything_is_passed_on(paths) -> None:
    shown = Recorder()
    with a_writer(paths, shown, beat=60) as writer:
        writer.note("a phase")
        writer.note(BuildEvent("retry", unit="1a"))
        writer.start(2, 20)
        writer.update(1, 10, 0)
    assert shown.notes == ["a phase", "event=retry unit=1a"]
    assert shown.numbers == [(2, 20), (1, 10, 0)]


def test_events_are_counted(paths) -> None:
    with a_writer(paths, beat=60) as writer:
        for kind in ("retry", "retry", "worker_lost", "split"):
            writer.note(BuildEvent(kind, unit="1a"))
        writer.note("event=retry said by someone else")  # text alone is no event
    found = only(paths)
    assert (found.retries, found.worker_deaths) == (2, 1)


def test_the_speed_is_that_of_the_last_beats(paths, monkeypatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("sift_index.pipelines.state.time.monotonic", lambda: clock[0])
    with a_writer(paths, beat=60) as writer:
        writer.accept()
        assert only(paths).tokens_per_second == 0
        writer.start(1000, 10**6)
        done = 0
        for beat in range(1, 101):  # fast at first, then ten times slower
            clock[0] += 10
            done += 10_000 if beat <= 50 else 1_000
            writer.update(beat, done, 0)
            writer._write()
        found = only(paths)
        assert found.tokens_per_second == 100
        assert found.eta_seconds == (10**6 - done) // 100


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (BuildError("no space left"), "failed", "BuildError: no space left"),
        (KeyboardInterrupt(), "interrupted", "interrupted"),
        (BuildInterrupted("terminated; 3 units wait", 143), "interrupted", "3 units wait"),
        (SystemExit(), "failed", "SystemExit"),
    ],
)
def test_how_a_build_ended_is_said(paths, error, state, reason) -> None:
    with pytest.raises(type(error)), a_writer(paths) as writer:
        writer.accept()
        raise error
    found = only(paths)
    assert found.state == state and reason in found.reason


def test_a_build_that_is_refused_leaves_no_trace(paths) -> None:
    with pytest.raises(BuildError), a_writer(paths):
        wait_for(lambda: read_states(paths))  # it is seen while it reads the corpus
        raise BuildError("refused")
    assert not paths.root.exists()


def test_a_refused_build_leaves_the_folder_and_the_build_of_others(paths) -> None:
    with a_writer(paths) as writer:
        writer.accept()
    before = only(paths)
    with pytest.raises(BuildError), a_writer(paths):
        wait_for(lambda: len(read_states(paths)) == 2)
        raise BuildError("refused")
    assert only(paths) == before


def test_a_quick_refusal_writes_nothing(paths, monkeypatch) -> None:
    monkeypatch.setattr(module, "write_state", lambda *arguments: pytest.fail("written"))
    with pytest.raises(BuildError), a_writer(paths, beat=60):
        raise BuildError("refused")


def test_two_builds_at_once_have_their_own_files(paths) -> None:
    with a_writer(paths) as one, a_writer(paths) as two:
        one.accept()
        two.accept()
        assert len(read_states(paths)) == 2
    assert [state.state for state in read_states(paths)] == ["finished", "finished"]
    with a_writer(paths) as three:
        three.accept()
        assert only(paths).state == "running"


def test_a_resumed_build_takes_the_place_of_the_dead_one(paths) -> None:
    dead = replace(
        about(tiny_config(Path("c"), paths.root, Path("m"))), updated="2020-01-01T00:00:00Z"
    )
    write_state(paths, dead)
    assert only(paths).verdict() == "dead"
    with a_writer(paths) as writer:
        writer.accept()
        assert only(paths).build != dead.build


@pytest.mark.parametrize(
    "problem", [BuildError("disk full"), OSError("gone"), ValueError("whatever")]
)
def test_what_cannot_be_written_is_said_once(paths, monkeypatch, problem) -> None:
    def refuse(*arguments: object) -> None:
        raise problem

    monkeypatch.setattr(module, "write_state", refuse)
    monkeypatch.setattr(module, "forget_states", refuse)
    shown = Recorder()
    with a_writer(paths, shown) as writer:
        writer.accept()
        writer.start(1, 1)
        time.sleep(4 * BEAT)
        writer.update(1, 1, 0)
    (note,) = shown.notes
    assert str(problem) in note and "goes on" in note


def test_a_heart_beats_on_when_nobody_reads_the_log(paths, monkeypatch) -> None:
    answers = iter([OSError("gone")])

    def unsteady(paths: IndexPaths, state: BuildState) -> None:
        for problem in answers:
            raise problem
        write_state(paths, state)

    class Closed(Recorder):
        def note(self, message: str) -> None:
            raise BrokenPipeError

    monkeypatch.setattr(module, "write_state", unsteady)
    with a_writer(paths, Closed()):
        wait_for(lambda: read_states(paths))


def test_names_that_are_no_unicode_are_written_escaped(paths, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/sift-index", "build", "caf\udce9"])
    config = tiny_config(Path("caf\udce9"), paths.root, Path("model\udce9"))
    with pytest.raises(BuildError), StateWriter(paths, about(config), Recorder(), BEAT) as writer:
        writer.accept()
        writer.note("loading model\udce9")
        raise BuildError("caf\udce9 is gone")
    found = only(paths)
    assert (found.corpus, found.reason) == ("caf\\udce9", "BuildError: caf\\udce9 is gone")
    assert found.message == "loading model\\udce9" and found.command.endswith("'caf\\udce9'")


@pytest.mark.parametrize(
    ("state", "minutes", "alone"),
    [("running", 0, False), ("running", 5, True), ("finished", 0, True), ("interrupted", 0, True)],
)
def test_a_build_is_alone_unless_another_one_lives(paths, state, minutes, alone) -> None:
    moment = (datetime.now(UTC) - timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
    with a_writer(paths) as writer:
        paths.create()
        writer.accept()
        assert writer.alone()
        write_state(paths, replace(only(paths), build="f" * 16, state=state, updated=moment))
        assert writer.alone() == alone


def test_a_build_whose_state_cannot_be_read_may_live(paths) -> None:
    with a_writer(paths) as writer:
        paths.create()
        writer.accept()
        (paths.state / ("f" * 16 + ".json")).write_bytes(b"{}")
        assert not writer.alone()


def test_documents_that_failed_before_any_work_count(paths) -> None:
    progress = Recorder()
    with a_writer(paths, progress) as writer:
        paths.create()
        writer.accept(3)
        assert only(paths).failures == 3
        writer.start(2, 20)
        writer.update(1, 10, 1)
    assert only(paths).failures == 4 and progress.numbers[-1] == (1, 10, 4)


def test_a_store_that_comes_back_is_written_again(paths, monkeypatch) -> None:
    answers = iter([OSError("gone")])

    def unsteady(paths: IndexPaths, state: BuildState) -> None:
        for problem in answers:
            raise problem
        write_state(paths, state)

    monkeypatch.setattr(module, "write_state", unsteady)
    with a_writer(paths) as writer:
        writer.accept()
        wait_for(lambda: read_states(paths))


def test_states_of_builds_into_an_object_store(bucket: Bucket) -> None:
    paths = IndexPaths(bucket.path("index"))
    with a_writer(paths) as writer:
        writer.accept()
        writer.start(2, 20)
        wait_for(lambda: only(paths).units == 2)
    assert only(paths).state == "finished"
    with pytest.raises(BuildError), a_writer(IndexPaths(bucket.path("other"))):
        wait_for(lambda: bucket.keys("other/state"))
        raise BuildError("refused")
    assert bucket.keys("other") == []


def test_a_killed_driver_is_found_dead(paths, tmp_path) -> None:
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from sift_index.formats.store import IndexPaths\n"
        "from sift_index.pipelines.config import BuildConfig\n"
        "from sift_index.pipelines.progress import build_progress\n"
        "from sift_index.pipelines.state import StateWriter, about\n"
        "paths = IndexPaths(Path(sys.argv[1]))\n"
        "config = BuildConfig(Path('corpus'), paths.root, 'model')\n"
        "with StateWriter(paths, about(config), build_progress(), 0.05) as writer:\n"
        "    writer.accept()\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(paths.root)], stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout and driver.stdout.readline() == "ready\n"
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    found = only(paths)
    assert (found.state, found.verdict()) == ("running", "running")  # too early to tell
    later = replace(found, updated="2020-01-01T00:00:00Z")
    assert later.verdict() == "dead"


def test_a_real_build_says_what_it_did(inline, tmp_path) -> None:
    corpus = write_corpus(tmp_path / "corpus", {f"{n}.txt": text(300, n) for n in range(3)})
    summary = inline(corpus, tmp_path / "index")
    found = only(IndexPaths(tmp_path / "index"))
    assert (found.state, found.corpus, found.policy) == ("finished", str(corpus), "probe")
    assert summary.timing.units == summary.units == 2
    assert summary.to_json()["timing"]["devices"][0]["tokens"] == summary.new_tokens


def test_a_build_into_anothers_index_leaves_no_state(inline, tmp_path) -> None:
    corpus = write_corpus(tmp_path / "corpus", {"a.txt": text(300, 1)})
    index = tmp_path / "index"
    inline(corpus, index)
    before = only(IndexPaths(index))
    with pytest.raises(FingerprintMismatchError):
        inline(corpus, index, span_prefix="another")
    assert only(IndexPaths(index)) == before
