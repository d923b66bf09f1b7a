"""`sift-index bench ttft` as a user runs it, on a CPU and a tiny model."""

import json

import pytest
import yaml
from click.testing import CliRunner, Result

from sift_index.bench import ttft_laps
from sift_index.cli.main import cli
from sift_index.evaluation.results import read_results
from tests.bench.ttft_problems import model, ticking

MORE = ["--documents", "130", "--densities", "default,0.1", "--no-compile", "--repeats", "1"]


@pytest.fixture(scope="module")
def shape(tmp_path_factory):
    """A folder that holds the config of a tiny model."""
    folder = tmp_path_factory.mktemp("shape")
    model().config.save_pretrained(folder)
    return folder


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["bench", "ttft", *(str(a) for a in arguments)])


@pytest.fixture
def tiny(shape, monkeypatch):
    """Let a made-up clock time the tiny model: every prefill takes 10 ms."""
    monkeypatch.setattr(ttft_laps, "prefill_clock", lambda device: ticking(10.0))
    return ["--model-shape", shape, "--device", "cpu", *MORE]


def test_without_a_gpu_it_is_refused(shape):
    result = call("--model-shape", shape, "--tokens", 400, "--documents", 130)
    assert result.exit_code == 2
    assert "torch sees no GPU; use --device cpu" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "16k"], "--tokens: expected numbers with commas between them, found '16k'"),
        (["--densities", "dense"], "--densities: expected numbers with commas between them"),
        (["--densities", "1.5"], "a density: expected between 0 and 1, found 1.5"),
        (["--rows", "fa3"], "--rows: expected some of dense-fa3, dense-cudnn"),
        (["--tokens", "2048"], "--tokens: expected 4,224 or more"),
        (["--model-shape", "gpt-2"], "--model-shape: expected a preset"),
        (["--layers", "99"], "--layers: expected 1 to 32"),
        (["--tokens", "262144"], "--tokens: expected at most 131,072"),
        (["--resume"], "expected --results with --resume, found none"),
        (["--crossover", "x.yaml", "--results", "y.json"], "expected --crossover alone"),
        (["--results", "/proc/no/ttft.json"], "cannot be written"),
        (["--crossover", "/proc/no/h200.yaml"], "cannot be written"),
    ],
)
def test_wrong_usage_is_said_before_any_gpu_is_needed(arguments, message):
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_table_and_progress_are_printed(tiny, tmp_path):
    rows = ["--rows", "dense-fa3,dense-sdpa,sift,kv-reuse,cacheblend15", "--kv-disk", tmp_path]
    result = call(*tiny, "--tokens", 400, *rows)
    assert result.exit_code == 0, result.output
    assert "[1/1] 400-doc130: dense-sdpa 10.0 ms, default 10.0 ms (1.00x)" in result.stderr
    assert "dense-fa3: not timed: the device is cpu" in result.stderr
    assert "energy is not counted: " in result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[1][:5] == ["case", "ms", "attention", "rest", "upload+decode"]
    assert [line[0] for line in lines[2:]] == [
        f"400-{row}-doc130"
        for row in (
            *("dense-sdpa", "default", "ca10", "kv-reuse-dram", "kv-reuse-disk"),
            *("cacheblend15-dram", "cacheblend15-disk"),
        )
    ]


def test_json_and_results_hold_the_same_numbers(tiny, tmp_path):
    path = tmp_path / "ttft.json"
    rows = ["--rows", "dense-sdpa,sift", "--results", path, "--output", "json"]
    result = call(*tiny, "--tokens", 400, *rows)
    assert result.exit_code == 0, result.output
    [case] = json.loads(result.stdout)["cases"]
    assert (case["name"], case["tokens"], case["document"]) == ("400-doc130", 400, 130)
    known = {key: row["value"] for key, row in read_results(path).items()}
    assert known == {
        (f"400-{name}-doc130", metric): value
        for name, values in case["rows"].items()
        for metric, value in values.items()
    }


def test_a_run_goes_on_where_it_stopped(tiny, tmp_path):
    path = tmp_path / "ttft.json"
    first = [*tiny, "--rows", "dense-fa3,sift", "--results", path]
    assert call(*first, "--tokens", 400).exit_code == 0
    result = call(*first, "--tokens", "400,500", "--resume")
    assert "[1/1] 500-doc130: default 10.0 ms" in result.stderr
    result = call(*first, "--tokens", "400,500", "--resume")
    assert result.exit_code == 0 and not result.stdout.strip()
    result = call(*first, "--tokens", 600, "--budget", 1e-9)
    assert result.exit_code == 0 and ("600-ca10-doc130", "ttft_ms") in read_results(path)


def test_the_crossover_is_written(tiny, tmp_path, shape):
    path = tmp_path / "cpu.yaml"
    result = call(*tiny, "--tokens", 512, "--rows", "dense-sdpa,sift", "--crossover", path)
    assert result.exit_code == 0, result.output
    values = yaml.safe_load(path.read_text())
    assert values["model_shape"] == shape.name and values["device"].startswith("CPU")
    assert values["rows"] == [{"tokens": 512, "max_density": 0.0}]
    assert "sparse is faster up to density" in result.stdout
