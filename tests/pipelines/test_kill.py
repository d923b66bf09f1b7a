"""SIGKILL in the middle of a build: nothing lost, nothing twice, nothing committed done again."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from sift_index.formats.reader import IndexReader
from sift_index.formats.receipts import read_receipts
from sift_index.formats.store import IndexPaths
from sift_index.pipelines.build import run_build
from tests.pipelines.builds import descendants, hashes, identities, tiny_config

ROOT = Path(__file__).parents[2]
BUILD = """
import sys
from pathlib import Path
from sift_index.pipelines.build import run_build
from tests.pipelines.builds import tiny_config
corpus, index, model = map(Path, sys.argv[1:])
run_build(tiny_config(corpus, index, model, address="local"))
"""


def receipts_in(index: Path) -> int:
    return len(list(index.glob("commits/*.json")))


def wait_until(condition, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.005)


def kill_all(pids: list[int]) -> None:
    """Kill processes that this test started, and wait until they are gone."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(is_running(pid) for pid in pids), 20, "processes to end")


def is_running(pid: int) -> bool:
    with suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z"
    return False


def build_and_kill_the_driver(corpus: Path, index: Path, model: Path) -> None:
    """Run a build with a Ray of its own in another process; kill all of it after two commits."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    driver = subprocess.Popen(
        [sys.executable, "-c", BUILD, str(corpus), str(index), str(model)],
        cwd=ROOT,
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(
            lambda: receipts_in(index) >= 2 or driver.poll() is not None, 120, "two receipts"
        )
        assert driver.poll() is None, "the build ended before it could be killed"
    finally:
        below = descendants(driver.pid)
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(20)
        kill_all(below)


def check_whole(index: Path, undisturbed: Path) -> None:
    reader, expected = IndexReader.open(index), IndexReader.open(undisturbed)
    assert {name: reader.document_keys(name) for name in reader.document_ids()} == {
        name: expected.document_keys(name) for name in expected.document_ids()
    }
    keys = [key for receipt in read_receipts(IndexPaths(index)) for key in receipt.keys]
    assert len(keys) == len(set(keys)) == len(reader) == len(expected)
    assert reader.verify().ok
    packs = {pack.name for pack in reader.manifest.packs}
    assert packs == {pack.name for pack in expected.manifest.packs}
    found = hashes(index)
    assert all(found[name] == value for name, value in hashes(undisturbed).items())


def test_a_killed_driver_loses_and_repeats_nothing(
    undisturbed, many, tiny_model_dir, tmp_path
) -> None:
    index = tmp_path / "index"
    build_and_kill_the_driver(many, index, tiny_model_dir)
    committed = read_receipts(IndexPaths(index))
    assert 2 <= len(committed) < len(read_receipts(IndexPaths(undisturbed)))
    assert not list(index.glob("manifest-*.json"))
    named = {f"packs/{r.pack.name}" for r in committed} | {
        f"commits/{r.unit}.json" for r in committed
    }
    before = {name: found for name, found in identities(index).items() if name in named}
    assert len(before) == 2 * len(committed)

    found = run_build(tiny_config(many, index, tiny_model_dir))

    assert found.resumed_keys == sum(len(receipt.keys) for receipt in committed)
    assert found.new_keys + found.resumed_keys == found.keys == found.indexed == 48
    assert before.items() <= identities(index).items()
    check_whole(index, undisturbed)


class WorkerKiller(threading.Thread):
    """Kills one build worker below this process once there are two receipts."""

    def __init__(self, index: Path) -> None:
        super().__init__(daemon=True)
        self.index = index
        self.killed: int | None = None
        self.committed_then = 0

    def run(self) -> None:
        wait_until(lambda: receipts_in(self.index) >= 2, 120, "two receipts")
        (self.killed,) = descendants(os.getpid(), "ray::BuildWorker")
        os.kill(self.killed, signal.SIGKILL)
        self.committed_then = receipts_in(self.index)


@pytest.mark.timeout(180)
def test_a_killed_worker_is_replaced_and_the_build_completes(
    undisturbed, many, tiny_model_dir, tmp_path
) -> None:
    index = tmp_path / "index"
    killer = WorkerKiller(index)
    killer.start()
    found = run_build(tiny_config(many, index, tiny_model_dir))
    killer.join(1)
    assert killer.killed and not is_running(killer.killed)
    assert killer.committed_then < len(read_receipts(IndexPaths(undisturbed)))
    assert found.retries >= 1 and found.failed == ()
    assert found.new_keys == found.indexed == 48 and found.resumed_keys == 0
    check_whole(index, undisturbed)


def test_builds_leave_no_worker_behind(undisturbed) -> None:
    wait_until(
        lambda: not descendants(os.getpid(), "ray::BuildWorker"), 10, "the workers to be stopped"
    )
