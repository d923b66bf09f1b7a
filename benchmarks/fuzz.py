"""Fuzzes the readers of the format with atheris (coverage-guided), and records what came of it.

python -m benchmarks.fuzz [--seconds 600] [--inputs 1000000]

Needs `pip install atheris`. Crashing inputs stay in build/fuzz; replay one with
`python -m benchmarks.fuzz_atheris build/fuzz build/fuzz/crash-…`.
"""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from sift_index.errors import UsageError
from sift_index.evaluation.results import merge_results, result_rows

ROOT = Path(__file__).parent
RESULTS = ROOT / "results" / "faults.json"
KEPT = ROOT.parent / "build" / "fuzz"
HANG_SECONDS = 10
MEMORY_MB = 2048
_STATISTIC = re.compile(r"stat::(\w+): +(\d+)")


def fuzz(seconds: int, inputs: int, kept: Path = KEPT) -> dict[str, float]:
    """Run until time or inputs are used up, or to the first finding; return what to record.

    A hang is an input that takes 10 seconds; 2 GiB of memory count as a crash. Raises UsageError
    without atheris, or when the fuzzer cannot start.
    """
    if importlib.util.find_spec("atheris") is None:
        raise UsageError("expected the package atheris, found none; pip install atheris")
    kept.mkdir(parents=True, exist_ok=True)
    before, start = {*kept.iterdir()}, time.monotonic()
    with tempfile.TemporaryDirectory(dir=_memory_folder()) as folder:
        (Path(folder) / "corpus").mkdir()
        output = _libfuzzer(Path(folder), _options(seconds, inputs, kept))
    found = [path.name.partition("-")[0] for path in kept.iterdir() if path not in before]
    numbers = {name: float(value) for name, value in _STATISTIC.findall(output)}
    if "number_of_executed_units" not in numbers:
        raise UsageError(f"the fuzzer ended without a count: {output[-2000:]}")
    return {
        "fuzz_inputs": numbers["number_of_executed_units"],
        "fuzz_seconds": time.monotonic() - start,
        "fuzz_crashes": float(len(found) - found.count("timeout")),
        "fuzz_hangs": float(found.count("timeout")),
        "fuzz_peak_mb": numbers["peak_rss_mb"],
    }


def _memory_folder() -> str | None:
    """Return a folder whose files lie in memory, None where the system has none."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _options(seconds: int, inputs: int, kept: Path) -> list[str]:
    return [
        f"-max_total_time={seconds}", f"-runs={inputs}", f"-artifact_prefix={kept}/",
        f"-timeout={HANG_SECONDS}", f"-rss_limit_mb={MEMORY_MB}", "-max_len=8192",
        "-print_final_stats=1",
    ]  # fmt: skip


def _libfuzzer(folder: Path, options: list[str]) -> str:
    command = [sys.executable, "-m", "benchmarks.fuzz_atheris", str(folder / "corpus"), *options]
    environment = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run(
        command, cwd=ROOT.parent, env=environment, capture_output=True, text=True, errors="replace"
    )
    return done.stderr


def main() -> None:
    """Fuzz and record; exit with 1 when something was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    arguments = parser.parse_args()
    found = fuzz(arguments.seconds, arguments.inputs)
    units = {"fuzz_seconds": "s", "fuzz_peak_mb": "MiB"}
    values = [("format", name, value, units.get(name, "inputs")) for name, value in found.items()]
    rows = result_rows(values, torch.device("cpu"), baseline="atheris, golden index v1")
    merge_results(RESULTS, "faults", rows)
    for row in rows:
        print(f"{row.metric:14} {row.value:12,.1f} {row.unit}")
    sys.exit(1 if found["fuzz_crashes"] or found["fuzz_hangs"] else 0)


if __name__ == "__main__":
    main()
