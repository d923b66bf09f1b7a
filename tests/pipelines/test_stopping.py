"""Ctrl-C and SIGTERM: workers gone, work kept, an exit code and a message that say so."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from ray.exceptions import RaySystemError

from sift_index.errors import BuildError, BuildInterrupted
from sift_index.formats.receipts import read_receipts
from sift_index.formats.store import IndexPaths
from sift_index.pipelines.stopping import kept, signals_stop, stops_explained
from sift_index.pipelines.worker import BuildWorker
from tests.pipelines.builds import descendants
from tests.pipelines.test_kill import ROOT, is_running, kill_all, receipts_in, wait_until

MAIN = "from sift_index.cli.main import main; main()"
POLICY = "rule: probe\nprobe_rows: 64\nprobe_tokens: 64\n"


def test_sigterm_is_raised_and_the_handler_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(BuildInterrupted) as caught, signals_stop():
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal came late")
    assert caught.value.code == 143 and signal.getsignal(signal.SIGTERM) is before


def test_another_thread_may_build_without_signals() -> None:
    done = []

    def body() -> None:
        with signals_stop():
            done.append(1)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(10)
    assert done == [1]


def test_before_a_unit_is_committed_there_is_nothing_to_resume(tmp_path) -> None:
    with (
        pytest.raises(BuildInterrupted, match="no unit was committed yet.*same command"),
        stops_explained(IndexPaths(tmp_path / "index")),
    ):
        raise KeyboardInterrupt
    assert not (tmp_path / "index").exists()


def test_after_publishing_the_version_is_named(undisturbed) -> None:
    assert "holds version 1: run the same command" in kept(IndexPaths(undisturbed))


def test_the_end_of_ray_is_a_build_error_that_says_how_to_resume(tmp_path) -> None:
    with (
        pytest.raises(BuildError, match=r"connection to the Ray cluster was lost.*same command"),
        stops_explained(IndexPaths(tmp_path / "index")),
    ):
        raise RaySystemError("GCS is gone")


def test_sigterm_while_ray_waits_is_not_taken_for_ctrl_c(local_ray, tmp_path) -> None:
    def forever() -> None:
        time.sleep(60)

    waiting = local_ray.remote(forever).options(num_cpus=0).remote()
    threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    try:
        with (
            pytest.raises(BuildInterrupted, match="terminated; no unit") as caught,
            signals_stop(),
            stops_explained(IndexPaths(tmp_path / "index")),
        ):
            local_ray.get(waiting)
    finally:
        local_ray.cancel(waiting, force=True)
    assert caught.value.code == 143


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_says_what_is_kept_and_the_same_command_resumes(
    inline, many, tmp_path, monkeypatch, number, code
) -> None:
    index, run = tmp_path / "index", BuildWorker.run_unit

    def third_is_the_last(self, unit):
        if receipts_in(index) == 3:
            os.kill(os.getpid(), number)
        return run(self, unit)

    monkeypatch.setattr(BuildWorker, "run_unit", third_is_the_last)
    with pytest.raises(BuildInterrupted, match="3 committed units wait.*same command") as caught:
        inline(many, index)
    assert caught.value.code == code
    monkeypatch.setattr(BuildWorker, "run_unit", run)
    kept = sum(len(receipt.keys) for receipt in read_receipts(IndexPaths(index)))
    again = inline(many, index)
    assert again.resumed_keys == kept and again.indexed == 48


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_command_ends_with_its_workers(many, tiny_model_dir, tmp_path, number, code) -> None:
    index, policy = tmp_path / "index", tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    command = [sys.executable, "-c", MAIN, "build", str(many)]
    options = {"--model": tiny_model_dir, "--index": index, "--policy": policy, "--workers": 1}
    options |= {"--threads": 1, "--unit-tokens": 900, "--address": "local", "--device": "cpu"}
    command += [str(part) for option in options.items() for part in option]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    driver = subprocess.Popen(
        command, cwd=ROOT, env=environment, start_new_session=True, stderr=subprocess.PIPE
    )
    below: list[int] = []
    try:
        wait_until(
            lambda: receipts_in(index) >= 2 or driver.poll() is not None, 150, "two receipts"
        )
        below = descendants(driver.pid)
        assert below
        driver.send_signal(number)
        _, said = driver.communicate(timeout=60)
        assert driver.returncode == code, said.decode()
        assert b"committed units wait" in said and b"same command to resume" in said
        assert b"Traceback" not in said
        wait_until(lambda: not any(map(is_running, below)), 30, "the workers to end")
    finally:
        driver.kill()
        kill_all(below)
    assert receipts_in(index) >= 2 and not list(index.glob("manifest-*.json"))
