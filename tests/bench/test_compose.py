"""`sift-index bench compose`: the numbers that DESIGN names, of the work it says."""

import json

import pytest
from click.testing import CliRunner

from sift_index.bench.compose import ComposeOptions, bench_compose
from sift_index.bench.lookup_index import IndexShape
from sift_index.cli.main import cli
from sift_index.errors import UsageError

SHAPE = IndexShape(documents=30, packs=2, tokens=64, layers=2, heads=2)


def test_cases_and_metrics(tmp_path):
    options = ComposeOptions(SHAPE, documents=8, find_among=20, repeats=2, folder=tmp_path)
    found = list(bench_compose(options))
    assert [(case, metric, unit) for case, metric, _, unit in found] == [
        ("8docs", "compose_ms", "ms"),
        ("1k-among-20", "find_first_ms", "ms"),
        ("1k-among-20", "find_ms", "ms"),
    ]
    assert all(value > 0 for _, _, value, _ in found)
    assert not list(tmp_path.iterdir())


def test_a_prompt_larger_than_the_index_is_refused(tmp_path):
    for many in (ComposeOptions(SHAPE, documents=31), ComposeOptions(SHAPE, 20, find_among=19)):
        with pytest.raises(UsageError, match="as many as the index has"):
            list(bench_compose(many))


def test_the_command_adds_its_rows_to_the_results(tmp_path):
    results = tmp_path / "lookup.json"
    arguments = ["--documents=3", "--tokens=40", "--layers=1", "--heads=1", "--among=5"]
    more = ["--find-among=0", "--repeats=1", f"--results={results}", "--output=json"]
    found = CliRunner().invoke(cli, ["bench", "compose", *arguments, *more])
    assert found.exit_code == 0, found.output
    value = json.loads(found.stdout)["cases"]["3docs"]["compose_ms"]
    (row,) = json.loads(results.read_text())["rows"]
    assert (row["case"], row["metric"], row["value"]) == ("3docs", "compose_ms", value)
    assert "among 5" in row["baseline"]
