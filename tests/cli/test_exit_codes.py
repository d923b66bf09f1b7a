"""One meaning a code, whatever the command: 2 for what was asked for, 1 for what happened."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sift_index.cli.frame import EXIT_CODES
from sift_index.cli.main import cli

USAGE = [
    "build",
    "build {nowhere} --model {model} --index {new}",
    "build {photos} --model {model} --index {new}",
    "build {photo} --model {model} --index {new}",
    "build {corpus} --model {nowhere} --index {new}",
    "build {corpus} --model {model} --index {photo}",
    "build {corpus} --model {model} --index ftp://host/index",
    "build {corpus} --model {model} --index {new} --policy nobody",
    "build {corpus} --model {model} --index {new} --policy {photo}",
    "build {corpus} --model {model} --index {new} --dtype float8",
    "build {corpus} --model {model} --index {new} --device tpu",
    "build {corpus} --model {model} --index {new} --unit-tokens 0",
    "build {corpus} --model {model} --index {new} --workers 0",
    "build {corpus} --model {model} --index {new} --max-failures -1",
    "build {corpus} --model {model} --index {new} --long never",
    "build {table} --model {model} --index {new} --text-field body",
    "build {table} --model {model} --index {new} --id-field name",
    "status",
    "status {nowhere} --failed -1",
    "inspect {nowhere} --ids a --document b",
    "verify {nowhere} --version first",
    "versions ftp://host/index",
    "delete {nowhere}",
    "delete {nowhere} --ids-from {nowhere}",
    "compact {nowhere} --pack-mib 0",
    "gc {nowhere}",
    "gc {nowhere} --keep 0",
    "export {nowhere} s3://bucket/out.parquet",
    "import {nowhere} {new}",
    "explain {nowhere}",
    "explain {nowhere} {photo} --crossover {nowhere}",
    "eval",
    "eval --model {model} --version 1",
    "eval --model {model} --questions {nowhere}",
    "eval --model {model} --questions {photo}",
    "eval --model {model} --methods magic",
    "eval --model {model} --shard 0/3",
    "eval --model {model} --results {photo}",
    "eval --model {nowhere}",
    "tune --model {model}",
    "tune {nowhere} --model {model} --out {new}",
    "tune {corpus} --model {model} --out {photo}",
    "tune {corpus} --model {model} --out {new} --max-kl -1",
    "bench",
    "bench kernels --budget soon",
    "bench ttft --rows magic",
    "bench build --documents many",
    "bench lookup --documents 0",
    "bench compose --folder {nowhere}",
    "bench plan --texts none",
    "demo --questions 0",
    "demo --folder {photo}",
    "doctor now",
    "models all",
    "nothing",
]
RUN_TIME = [
    "build {empty} --model {model} --index {new}",
    "build {torn} --model {model} --index {new}",
    "build {corpus} --model {bare} --index {new}",
    "build {latin} --model {model} --index {new} --max-failures 0",
    "eval --model {bare}",
    "tune {corpus} --model {bare} --out {new}",
    "tune {torn} --model {model} --out {new}",
]
NO_INDEX = [
    "status {nowhere}",
    "inspect {nowhere}",
    "inspect {photos} --version 3",
    "verify {nowhere}",
    "versions {nowhere}",
    "delete {nowhere} a.txt",
    "compact {nowhere}",
    "gc {nowhere} --keep 1",
    "export {nowhere} {new}",
    "import {photo} {new}",
    "explain {nowhere} {photo}",
    "eval {nowhere}",
]


@pytest.fixture(scope="module")
def places(tmp_path_factory, tiny_model_dir) -> dict[str, Path]:
    """What the lines above name: `bare` is a model without weights, `torn` no whole Parquet."""
    folder = tmp_path_factory.mktemp("places")
    files = {
        "corpus/a.txt": b"A document of some words. " * 20,
        "photos/a.jpg": b"\xff\xd8",
        "empty/a.jsonl": b"\n",
        "latin/a.txt": b"caf\xe9",
        "torn.parquet": b"PAR1 and no more",
        "table.csv": b"text,id\nwords,1\n",
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "bare").mkdir()
    for path in tiny_model_dir.glob("*.json"):
        (folder / "bare" / path.name).write_bytes(path.read_bytes())
    names = ("corpus", "photos", "empty", "latin", "bare", "nowhere")
    return {
        **{name: folder / name for name in names},
        "photo": folder / "photos" / "a.jpg",
        "torn": folder / "torn.parquet",
        "table": folder / "table.csv",
        "model": tiny_model_dir,
    }


@pytest.mark.parametrize(
    ("line", "code"),
    [
        *((line, 2) for line in USAGE),
        *((line, 1) for line in RUN_TIME),
        *((line, 4) for line in NO_INDEX),
    ],
)
def test_what_goes_wrong_ends_with_the_code_of_its_kind(
    local_ray, places, tmp_path, line, code
) -> None:
    new = tmp_path / "new"
    arguments = [word.format(**places, new=new) for word in line.split()]
    found = CliRunner().invoke(cli, arguments)
    assert isinstance(found.exception, SystemExit), found.exception
    assert found.exit_code == code, found.output
    assert found.stderr.strip() and (not new.exists() or "--max-failures" in line)


def test_every_command_is_in_the_table() -> None:
    lines = [line.split() for line in USAGE]
    for name, command in cli.commands.items():
        assert any(words[0] == name for words in lines), name
        for inner in command.commands if isinstance(command, click.Group) else ():
            assert any(words[:2] == [name, inner] for words in lines), f"{name} {inner}"


def test_help_says_what_the_codes_mean() -> None:
    found = " ".join(CliRunner().invoke(cli, ["--help"]).output.split())
    assert " ".join(EXIT_CODES.split()) in found
    assert "2 wrong usage: an argument, an option or a file" in found
