"""Spread one evaluation over processes and GPUs, then join what they found.

python -m benchmarks.run_quality SECONDS PROCESSES FOLDER RESULTS -- OPTIONS OF sift-index eval

One process is bound by Python's launches, so several share a GPU. After SECONDS the processes are
stopped; scores found so far lie in FOLDER, are reported and merged into RESULTS, and the same
command goes on with the rest.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import torch

COMMAND = [sys.executable, "-c", "from sift_index.cli.main import main; main()", "eval"]


def main() -> None:
    """Run the shards, then report the joined scores."""
    split = sys.argv.index("--")
    seconds, processes, folder, results = sys.argv[1:split]
    options = sys.argv[split + 1 :]
    files = [Path(folder) / f"scores-{i}.jsonl" for i in range(1, int(processes) + 1)]
    Path(folder).mkdir(parents=True, exist_ok=True)
    _run_shards(files, options, float(seconds))
    joined = Path(folder) / "scores.jsonl"
    joined.write_bytes(b"".join(_whole_lines(file) for file in files if file.exists()))
    final = ["--scores", str(joined), "--scored-only", "--results", results]
    subprocess.run([*COMMAND, *options, *final], check=True)


def _run_shards(files: list[Path], options: list[str], seconds: float) -> None:
    running = []
    for number, file in enumerate(files):
        shard = ["--scores", str(file), "--shard", f"{number + 1}/{len(files)}"]
        log = file.with_suffix(".log").open("w", encoding="utf-8")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if gpus := torch.cuda.device_count():
            environment["CUDA_VISIBLE_DEVICES"] = str(number % gpus)
        process = subprocess.Popen(
            [*COMMAND, *options, *shard], stdout=log, stderr=log, env=environment
        )
        running.append(process)
    _wait(running, seconds)


def _wait(running: list[subprocess.Popen[bytes]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    try:
        for process in running:
            process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        for process in running:
            process.kill()
    for process in running:
        process.wait()


def _whole_lines(file: Path) -> bytes:
    """Return a shard's lines without one that a kill cut short."""
    lines, end, _ = file.read_bytes().rpartition(b"\n")
    return lines + end


if __name__ == "__main__":
    main()
