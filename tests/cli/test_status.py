"""`sift-index status` as a user runs it: on a folder, in a store, on builds alive and dead."""

import json
import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sift_index.cli.main import cli
from sift_index.formats.buildstate import read_states, state_path, write_state
from sift_index.formats.location import parse_location
from sift_index.formats.store import IndexPaths
from tests.object_store import Bucket

COMMAND = "sift-index build corpus --model m"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def as_json(*arguments: object):
    result = call("status", *arguments, "--output", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def built(tmp_path_factory, tiny_model_dir, local_ray) -> Path:
    folder = tmp_path_factory.mktemp("status")
    corpus, index = folder / "corpus", folder / "index"
    corpus.mkdir()
    for number in range(4):
        (corpus / f"{number}.txt").write_text(f"Document {number}. " * (10 + 20 * number))
    (corpus / "latin.txt").write_bytes(b"caf\xe9")
    result = call(
        "build", corpus, "--model", tiny_model_dir, "--index", index, "--unit-tokens", 500
    )
    assert result.exit_code == 3, result.output
    return index


@pytest.fixture
def index(built: Path, tmp_path: Path) -> Path:
    return shutil.copytree(built, tmp_path / "index")


def become(index: object, state: str, minutes: float = 0.0, **changes: object) -> None:
    """Let the build of an index say something else, so many minutes ago."""
    paths = IndexPaths(parse_location(str(index)))
    (found,) = read_states(paths)
    moment = (datetime.now(UTC) - timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
    write_state(paths, replace(found, state=state, updated=moment, **changes))  # type: ignore[arg-type]


def test_a_finished_build(index):
    found = as_json(index)
    assert (found["state"], found["version"], found["documents"]) == ("finished", 1, 4)
    (build,) = found["builds"]
    assert build["units"] == build["units_done"] == found["committed_units"] > 1
    assert build["tokens"] == build["tokens_done"] == found["tokens"]
    assert build["failures"] == 1
    assert found["failed"][0]["source"] == "latin.txt" and "UTF-8" in found["failed"][0]["reason"]
    assert (found["unpublished_units"], found["failed_documents"]) == (0, 1)
    timing = found["timing"]
    assert timing["units"] == found["receipts_read"] == found["committed_units"]
    assert sum(device["tokens"] for device in timing["devices"]) == found["tokens"]
    assert timing["nodes"] and timing["slowest"][0]["seconds"] == timing["seconds_max"]
    text = call("status", index).stdout
    assert "state       finished" in text and "failed      latin.txt" in text
    assert "version 1: 4 documents" in text and "unit time" in text and "slow node" in text


def test_a_running_build_says_how_far_it_is(index):
    become(
        index, "running", units=10, units_done=4, tokens=1000, tokens_done=250,
        tokens_per_second=5, retries=2, worker_deaths=1, message="event=retry unit=1a",
    )  # fmt: skip
    text = call("status", index).stdout
    assert "state       running; last sign of life" in text
    assert "4 of 10 units, 250 of 1,000 tokens (25.0%), 5 tokens/s in its last 5 minutes" in text
    assert "last 5 minutes, 2 min 30 s left" in text
    assert "2 retries, 1 workers lost" in text and "event=retry unit=1a" in text
    assert as_json(index)["builds"][0]["eta_seconds"] == 150


def test_a_dead_build_says_how_to_go_on(index):
    become(index, "running", minutes=12, command=COMMAND)
    assert as_json(index)["state"] == "dead"
    text = call("status", index).stdout
    assert "dead: no sign of life for 12 min" in text and "same command to resume" in text
    assert COMMAND in text


@pytest.mark.parametrize("state", ["failed", "interrupted"])
def test_a_build_that_ended_early_says_why(index, state):
    become(index, state, minutes=90, reason="BuildError: no space left on node-7")
    text = call("status", index).stdout
    assert f"{state} 1 h 30 min ago: BuildError: no space left on node-7" in text


def test_the_first_build_has_no_version_yet(index):
    for path in [*index.glob("manifest-*"), *index.glob("keys-*")]:
        path.unlink()
    become(index, "running")
    found = as_json(index)
    assert (found["version"], found["documents"]) == (None, 0)
    assert found["unpublished_units"] == found["committed_units"] > 1
    assert "no version yet" in call("status", index).stdout


UNFINISHED = [
    "inspect {}", "verify {}", "versions {}", "delete {} a", "compact {}", "gc {} --keep 1",
    "export {} {}/out.parquet", "explain {} {}", "eval {}",
]  # fmt: skip


@pytest.mark.parametrize("line", UNFINISHED)
def test_an_unfinished_build_is_pointed_at(index, line):
    units = len(list((index / "commits").iterdir()))
    for path in [*index.glob("manifest-*"), *index.glob("keys-*")]:
        path.unlink()
    become(index, "interrupted")
    found = call(*(word.format(index) for word in line.split()))
    assert found.exit_code == 4
    assert f"not published one yet, with {units} committed units" in found.stderr
    assert f"`sift-index status {index}`" in found.stderr and "again to resume" in found.stderr


def test_a_version_that_is_not_there_is_no_unfinished_build(index, tmp_path):
    for arguments in (["inspect", index, "--version", "9"], ["verify", tmp_path / "nowhere"]):
        found = call(*arguments)
        assert found.exit_code == 4 and "sift-index status" not in found.stderr


def test_an_index_whose_builds_left_no_word(index):
    shutil.rmtree(index / "state")
    assert as_json(index)["state"] == "none"
    assert "state       none" in call("status", index).stdout


def test_two_builds_at_once_are_both_shown(index):
    become(index, "running")
    (one,) = read_states(IndexPaths(index))
    write_state(IndexPaths(index), replace(one, build="f" * 16, host="elsewhere"))
    assert call("status", index).stdout.count("state       running") == 2
    assert len(as_json(index)["builds"]) == 2


def test_text_lists_some_failed_documents_and_json_all(index):
    text = call("status", index, "--failed", 0).stdout
    assert "latin.txt" not in text and "… and 1 more" in text
    assert len(as_json(index, "--failed", 0)["failed"]) == 1


def test_names_are_not_markup(index):
    become(index, "running", message="[red]", command="[bold]x[/bold]")
    text = call("status", index).stdout
    assert "[red]" in text and "[bold]x[/bold]" in text


def test_an_index_that_was_never_built_is_an_error(tmp_path):
    for place in (tmp_path, tmp_path / "none"):
        result = call("status", place, "--output", "json")
        assert result.exit_code == 4
        error = json.loads(result.stdout)["error"]
        assert error["type"] == "IndexNotFoundError" and "sift-index build" in error["message"]


def test_a_damaged_state_is_named(index):
    (state,) = read_states(IndexPaths(index))
    path = state_path(IndexPaths(index), state.build)
    path.write_bytes(b"{}")
    result = call("status", index)
    assert result.exit_code == 4
    assert path.name in result.stderr and "remove this file" in result.stderr


@pytest.mark.parametrize("options", [["--failed", "-1"], ["--receipts", "x"]])
def test_wrong_options_are_refused(index, options):
    assert call("status", index, *options).exit_code == 2


def test_an_index_in_an_object_store(bucket: Bucket, index):
    for path in sorted(path for path in index.rglob("*") if path.is_file()):
        bucket.put(f"index/{path.relative_to(index).as_posix()}", path.read_bytes())
    url = bucket.url("index")
    local, remote = as_json(index), as_json(url)
    (one,), (other,) = local.pop("builds"), remote.pop("builds")
    assert {**remote, "index": ""} == {**local, "index": ""}
    assert {**other, "silent_seconds": 0} == {**one, "silent_seconds": 0}
    become(url, "running", minutes=3)
    assert as_json(url)["state"] == "dead"
    result = call("status", bucket.url("none"))
    assert result.exit_code == 4 and "sift-index build" in result.stderr


def test_help_has_an_example():
    result = call("status", "--help")
    assert result.exit_code == 0
    assert "Example:" in result.stdout and "sift-index status" in result.stdout


def test_it_needs_neither_ray_nor_torch(index):
    import subprocess
    import sys

    code = (
        "import sys\n"
        "from sift_index.cli.main import cli\n"
        "try:\n"
        f"    cli(['status', {str(index)!r}])\n"
        "except SystemExit as end:\n"
        "    sys.exit(end.code or ('torch' in sys.modules) or ('ray' in sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
