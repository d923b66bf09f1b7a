"""slurm.sh, run with stand-ins for Slurm, Ray and the build that write down how they are called.

And once with Ray and the build as they are: two nodes on this machine.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sift_index.formats.store import IndexPaths
from sift_index.formats.verify import verify_index
from tests.pipelines.builds import text, write_corpus

SCRIPT = Path(__file__).parents[2] / "configs" / "clusters" / "slurm.sh"
NODES = ["node-1", "node-2", "node-3"]
# Each writes one line: its name and arguments.
LOG = 'echo "$(basename "$0") $*" >> "$LOG"\n'
FAKES = {
    # Drops its own options and runs the command "there".
    "srun": "while [[ $1 == --* ]]; do shift; done\n"
    'if [[ $1 == hostname ]]; then echo "10.0.0.7 10.1.0.7"; exit; fi\nexec "$@"\n',
    "scontrol": f'if [[ $1 == show ]]; then printf "%s\\n" {" ".join(NODES)}; fi\n',
    "ray": 'if [[ $1 == health-check ]]; then [[ -e "$LOG.head" ]]; exit; fi\n'
    '[[ " $* " == *" --head "* && -z ${NO_HEAD:-} ]] && touch "$LOG.head"\n'
    'trap "echo stopped >> $LOG.stopped; exit 0" TERM\nwhile :; do sleep 0.05; done\n',
    "sift-index": 'trap "echo clean >> $LOG.build; exit 143" TERM\ntouch "$LOG.running"\n'
    "if [[ -n ${BUILD_CODE:-} ]]; then\n"
    '  until [[ $(grep -c "^ray start" "$LOG") == 3 ]]; do sleep 0.05; done\n'
    "  exit $BUILD_CODE\nfi\nwhile :; do sleep 0.05; done\n",
}


class Job:
    """One run of the script on an imagined allocation of three nodes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        for name, body in FAKES.items():
            path = folder / name
            path.write_text("#!/bin/bash\n" + LOG + body)
            path.chmod(0o755)

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        env = {
            **kept,
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "LOG": str(self.log),
            "SLURM_JOB_NODELIST": "node-[1-3]",
            "SLURM_JOB_ID": "77",
            "SLURM_GPUS_ON_NODE": "8",
            "SLURM_CPUS_PER_TASK": "64",
            **environment,
        }
        self.process = subprocess.Popen(
            ["bash", str(SCRIPT), *arguments],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        return self.process

    def end(self) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=60)
        return self.process.returncode, output

    def calls(self, name: str) -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]

    def said(self, suffix: str) -> list[str]:
        path = Path(f"{self.log}.{suffix}")
        return path.read_text().split() if path.exists() else []

    def wait_for(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    @property
    def running(self) -> bool:
        return Path(f"{self.log}.running").exists()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    found = Job(tmp_path)
    yield found
    if found.process.poll() is None:
        found.process.terminate()  # it stops what it started
        found.process.wait(30)


ARGUMENTS = ("/shared/corpus", "/shared/corpus.sift", "llama-3.1-8b", "--unit-tokens", "131072")


def test_its_syntax_is_right() -> None:
    assert subprocess.run(["bash", "-n", str(SCRIPT)], check=False).returncode == 0
    assert os.access(SCRIPT, os.X_OK)


def test_ray_runs_on_every_node_before_the_build(job) -> None:
    job.start(*ARGUMENTS, BUILD_CODE="0")
    code, output = job.end()
    assert code == 0, output
    starts = [call for call in job.calls("ray") if call.startswith("start")]
    head = "start --head --node-ip-address=10.0.0.7 --port=6379"
    assert sum(call.startswith(head) for call in starts) == 1
    workers = [call for call in starts if "--address=10.0.0.7:6379" in call]
    assert len(workers) == len(NODES) - 1 == len(starts) - 1
    for call in starts:
        assert "--num-cpus=64 --num-gpus=8" in call and "--block" in call
    placed = [
        found[1]
        for call in job.calls("srun")
        if (found := re.search(r"--nodelist=(\S+) ray", call))
    ]
    assert sorted(placed) == NODES
    (build,) = job.calls("sift-index")
    assert build == (
        "build /shared/corpus --model llama-3.1-8b --index /shared/corpus.sift --address auto "
        "--unit-tokens 131072"
    )
    lines = job.log.read_text().splitlines()
    healthy = max(n for n, line in enumerate(lines) if line.startswith("ray health-check"))
    assert lines[healthy] == "ray health-check --address 10.0.0.7:6379"
    assert healthy < lines.index(f"sift-index {build}")
    job.wait_for(lambda: len(job.said("stopped")) == len(NODES))


@pytest.mark.parametrize("code", ["1", "3", "5"])
def test_the_code_of_the_build_is_that_of_the_job(job, code) -> None:
    job.start(*ARGUMENTS, BUILD_CODE=code)
    assert job.end()[0] == int(code)
    assert "requeue 77" not in job.calls("scontrol")


def test_at_the_time_limit_the_build_ends_cleanly_and_the_job_goes_on_later(job) -> None:
    job.start(*ARGUMENTS)
    job.wait_for(lambda: job.running)
    os.kill(job.process.pid, signal.SIGUSR1)
    code, output = job.end()
    assert code == 0 and "out of time" in output
    assert job.said("build") == ["clean"]
    assert job.calls("scontrol")[-1] == "requeue 77"
    job.wait_for(lambda: len(job.said("stopped")) == len(NODES))


def test_a_cancelled_job_ends_cleanly_and_stays_ended(job) -> None:
    job.start(*ARGUMENTS)
    job.wait_for(lambda: job.running)
    os.kill(job.process.pid, signal.SIGTERM)
    assert job.end()[0] == 143
    assert job.said("build") == ["clean"]
    assert "requeue 77" not in job.calls("scontrol")


def test_a_build_that_was_done_at_the_limit_is_not_queued_again(job) -> None:
    finished = job.folder / "sift-index"
    finished.write_text(finished.read_text().replace("exit 143", "exit 0"))
    job.start(*ARGUMENTS)
    job.wait_for(lambda: job.running)
    os.kill(job.process.pid, signal.SIGUSR1)
    assert job.end()[0] == 0
    assert "requeue 77" not in job.calls("scontrol")


def test_a_head_that_does_not_come_up_is_named(job) -> None:
    job.start(*ARGUMENTS, NO_HEAD="1", SIFT_HEAD_SECONDS="1")
    code, output = job.end()
    assert code == 1 and "expected Ray at 10.0.0.7:6379 on node-1" in output
    assert job.calls("sift-index") == []


def test_a_signal_while_ray_starts_ends_the_job(job) -> None:
    job.start(*ARGUMENTS, NO_HEAD="1")
    job.wait_for(lambda: any("health-check" in call for call in job.calls("ray")))
    os.kill(job.process.pid, signal.SIGTERM)
    assert job.end()[0] == 143
    assert job.calls("sift-index") == []


def test_missing_arguments_are_a_usage_error(job) -> None:
    job.start("/shared/corpus")
    code, output = job.end()
    assert code == 2 and "usage: sbatch slurm.sh CORPUS INDEX MODEL" in output
    assert job.calls("srun") == []


def test_all_processes_of_a_job_share_a_secret_of_its_own(job) -> None:
    ray = job.folder / "ray"
    ray.write_text(
        ray.read_text().replace(
            LOG, LOG + 'echo "$RAY_AUTH_MODE:$RAY_AUTH_TOKEN" >> "$LOG.token"\n'
        )
    )
    job.start(*ARGUMENTS, BUILD_CODE="0")
    job.end()
    (token,) = set(job.said("token"))
    assert re.fullmatch("token:[0-9a-f]{32}", token)


@pytest.mark.slow
def test_a_real_build_on_two_nodes(job, tiny_model_dir) -> None:
    for name in ("ray", "sift-index"):
        (job.folder / name).unlink()
    (job.folder / "scontrol").write_text("#!/bin/bash\necho node-1\necho node-2\n")
    corpus = write_corpus(job.folder / "corpus", {f"{n}.txt": text(300, n) for n in range(6)})
    index = job.folder / "index"
    place = tempfile.mkdtemp(prefix="s", dir="/tmp")  # sockets need a short path
    try:
        job.start(
            *(str(corpus), str(index), str(tiny_model_dir)),
            *("--unit-tokens", "700", "--device", "cpu", "--threads", "1"),
            PATH=f"{job.folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            RAY_TMPDIR=place,
            SIFT_HEAD_IP="127.0.0.1",
            SIFT_RAY_PORT=str(free_port()),
            SLURM_GPUS_ON_NODE="0",
            SLURM_CPUS_PER_TASK="1",
        )
        output, _ = job.process.communicate(timeout=120)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    assert job.process.returncode == 0, output
    assert "6 indexed" in output and "index       version 1, published" in output
    assert verify_index(IndexPaths(index)).ok


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
