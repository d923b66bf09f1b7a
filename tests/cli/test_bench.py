"""`sift-index bench kernels` as a user runs it, on a CPU that stands in for the GPU."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sift_index.bench import clock as clocks
from sift_index.bench import peers
from sift_index.cli import bench
from sift_index.cli.main import cli
from tests.bench import problems

TINY = "--tokens 520 --documents 130 --head-dims 64 --heads 4 --kv-heads 2 --no-aligned".split()
MORE = ["--densities", "1.0,0.3", "--paths", "reference", "--no-metadata"]


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["bench", "kernels", *(str(a) for a in arguments)])


@pytest.fixture
def cpu(monkeypatch):
    """Let the CPU be timed, with dense attention in place of FlashAttention-3."""
    monkeypatch.setattr(bench, "_cuda_device", lambda: problems.CPU)
    monkeypatch.setattr(clocks, "cuda_clock", lambda device: problems.clock(seconds=0.0))
    monkeypatch.setattr(peers, "PEERS", (problems.FA3, *peers.PEERS[1:]))


def test_without_a_gpu_it_is_refused():
    result = call()
    assert result.exit_code == 2
    assert "expected a CUDA device to time kernels on, found none" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "4k"], "--tokens: expected numbers with commas between them, found '4k'"),
        (["--tokens", ""], "--tokens: expected different values, found []"),
        (["--densities", "0.5,0"], "a density: expected above 0 and at most 1, found 0.0"),
        (["--head-dims", "256"], "--head-dims: expected 64 or 128, found 256"),
        (["--documents", "8192"], "--tokens: expected 8,320 or more"),
        (["--paths", "cuda"], "--paths: expected some of "),
        (["--paths", ","], "found none"),
        (["--resume"], "expected --results with --resume, found none"),
        (["--results", "/proc/no/kernels.json"], "cannot be written"),
    ],
)
def test_wrong_usage_is_said_before_any_gpu_is_needed(arguments, message):
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_table_and_progress_are_printed(cpu):
    result = call(*TINY, *MORE)
    assert result.exit_code == 0, result.output
    assert "[2/2] d64/520/docs-130/ca-0.30: fa3 2.000 ms" in result.stderr
    assert "cudnn: not timed: " in result.stderr
    lines = result.stdout.splitlines()
    assert lines[1].split() == "case ms TFLOP/s of FA3 speed-up ideal of ideal error".split()
    assert [line.split()[0] for line in lines[2:]] == [
        f"{name}/d64/520/docs-130/ca-{ca}"
        for ca in ("1.00", "0.30")
        for name in ("fa3", "reference")
    ]


def test_json_and_results_hold_the_same_numbers(cpu, tmp_path):
    path = tmp_path / "kernels.json"
    result = call(*TINY, *MORE, "--no-peers", "--results", path, "--output", "json")
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    assert [case["name"] for case in values["cases"]] == [
        *("d64/520/docs-130/ca-1.00", "d64/520/docs-130/ca-0.30")
    ]
    assert (values["metadata"], values["left_out"]) == (None, [])
    assert "cudnn" not in result.stderr
    rows = json.loads(path.read_text())["rows"]
    found = {
        row["metric"]: row["value"]
        for row in rows
        if row["case"].startswith("reference/d64/520/docs-130/ca-0.30")
    }
    assert found == values["cases"][1]["timings"]["reference"]


def test_a_run_goes_on_where_it_stopped(cpu, tmp_path):
    path = tmp_path / "kernels.json"
    first = [*TINY, "--paths", "reference", "--no-peers", "--results", path]
    assert call(*first, "--densities", "0.3", "--metadata", "--repeats", 1).exit_code == 0
    result = call(*first, "--densities", "0.3,0.5", "--resume", "--metadata")
    assert "[1/1] d64/520/docs-130/ca-0.50" in result.stderr and "64k-64docs" not in result.output
    result = call(*first, "--densities", "0.3,0.5", "--resume")
    assert result.exit_code == 0 and not result.stdout.strip()
    result = call(*first, "--densities", "0.7,0.8", "--budget", 1e-9, "--resume")
    assert result.exit_code == 0


def test_wrong_outputs_fail(cpu, monkeypatch):
    import torch

    from sift_index.bench import paths

    wrong = problems.returning(torch.zeros(4, 520, 64))
    monkeypatch.setattr(paths, "chosen_paths", lambda names: [wrong])
    result = call(*TINY, *MORE)
    assert result.exit_code == 1
    assert "WRONG: relative error 1" in result.stderr


def test_results_of_another_kind_stay_as_they_are(cpu, tmp_path):
    path = Path(tmp_path / "notes.json")
    path.write_text("[]")
    assert call(*TINY, *MORE, "--results", path).exit_code == 2
    assert path.read_text() == "[]"
