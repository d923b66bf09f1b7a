"""One meaning a code, whatever the command: 2 for what was asked for, 1 for what happened."""

import errno
import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sift_index.cli.frame import EXIT_CODES
from sift_index.cli.main import cli
from sift_index.formats.history import VersionFacts

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
    "build {corpus} --model {model} --index {new} --prefix \udcff",
    "build {corpus} --model {model} --index {new} --span-suffix \udcff --dry-run",
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
# A path that this user may not look at, and one longer than any name may be.
UNREACHABLE = [
    "build {locked} --model {model} --index {new}",
    "build {corpus} --model {locked} --index {new}",
    "build {corpus} --model {model} --index {new} --policy {locked}",
    "build {corpus} --model {model} --index {locked}",
    "tune {locked} --model {model} --out {new}",
    "tune {corpus} --model {locked} --out {new}",
    "tune {corpus} --model {model} --out {locked}",
    "eval --model {locked}",
    "eval --model {model} --results {locked}",
    "eval --model {model} --scores {locked}",
    "eval --model {model} --methods policy:{locked}",
    "import {locked} {new}",
    "demo --folder {locked}",
]
# An unset variable of the shell must not mean the current folder.
EMPTY = [
    *("build {empty_text} --model {model}", "build {corpus} --model {model} --index {empty_text}"),
    *("tune {empty_text} --model {model}", "tune {corpus} --model {model} --out {empty_text}"),
    *(f"{name} {{empty_text}}" for name in ("status", "inspect", "verify", "versions", "eval")),
    *("delete {empty_text} a.txt", "compact {empty_text}", "gc {empty_text} --keep 1"),
    *("export {empty_text} {new}", "import {empty_text} {new}", "import {photo} {empty_text}"),
    *("explain {empty_text} {photo}", "explain {nowhere} {empty_text}"),
    *("eval --model {model} --corpus {empty_text}", "demo --folder {empty_text}"),
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


@pytest.fixture(params=["may not enter", "too long"])
def locked(request, tmp_path, monkeypatch) -> Path:
    """Root may enter every folder, so what the system says to others is played."""
    if request.param == "too long":
        return tmp_path / ("y" * 300)
    path, looks = tmp_path / "closed" / "inside", ("stat", "lstat", "open", "mkdir", "readlink")
    for name in looks:
        monkeypatch.setattr(f"os.{name}", _refusing(getattr(os, name), path))
    return path


def _refusing(real: Callable[..., object], closed: Path) -> Callable[..., object]:
    def call(path: object, *args: object, **kwargs: object) -> object:
        if isinstance(path, str | os.PathLike) and Path(path).is_relative_to(closed):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *args, **kwargs)

    return call


@pytest.mark.parametrize("line", UNREACHABLE)
def test_a_path_that_cannot_be_looked_at_is_wrong_usage(
    local_ray, places, tmp_path, locked, line
) -> None:
    new = tmp_path / "new"
    arguments = [word.format(**places, new=new, locked=locked) for word in line.split()]
    found = CliRunner().invoke(cli, arguments)
    assert isinstance(found.exception, SystemExit), found.exception
    assert found.exit_code == 2, found.output
    assert "Permission denied" in found.stderr or "File name too long" in found.stderr
    assert not new.exists()


@pytest.mark.parametrize("line", EMPTY)
def test_an_empty_text_is_no_path(places, tmp_path, line) -> None:
    values = {**places, "new": tmp_path / "new", "empty_text": ""}
    found = CliRunner().invoke(cli, [word.format(**values) for word in line.split()])
    assert (found.exit_code, "an empty text" in found.stderr) == (2, True), found.output


@pytest.mark.parametrize("output", ["text", "json"])
def test_what_the_system_refuses_is_one_message(monkeypatch, tmp_path, output) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "somewhere\udcff")

    monkeypatch.setattr("sift_index.cli.versions.history", refuse)
    found = CliRunner().invoke(cli, ["versions", str(tmp_path), "--output", output])
    assert (found.exit_code, found.stderr.count("\n")) == (1, 1)
    assert found.stderr.startswith("error: somewhere\\udcff: expected the system to do what")
    if output == "json":
        error = json.loads(found.stdout)["error"]
        assert error["type"] == "PermissionError" and "somewhere\udcff" in error["message"]


def test_who_stops_reading_gets_no_message(monkeypatch, tmp_path) -> None:
    def refuse(*_: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("sift_index.cli.versions.history", refuse)
    found = CliRunner().invoke(cli, ["versions", str(tmp_path)])
    assert (found.exit_code, found.output) == (1, "")


@pytest.mark.parametrize("output", ["text", "json"])
def test_names_that_are_no_utf_8_are_printed_escaped(monkeypatch, tmp_path, output) -> None:
    facts = VersionFacts(1, "2025-01-01T00:00:00Z", "sift-index \udcff", *(0,) * 7)
    monkeypatch.setattr("sift_index.cli.versions.history", lambda _: [facts])
    found = CliRunner().invoke(cli, ["versions", str(tmp_path), "--output", output])
    assert found.exit_code == 0 and "\\udcff" in found.stdout


def test_ids_that_cannot_be_read_are_wrong_usage(monkeypatch, tmp_path) -> None:
    class Broken(io.StringIO):
        def __next__(self) -> str:  # type: ignore[override]
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("click.types.open_stream", lambda *_, **__: (Broken(), True))
    arguments = ["delete", str(tmp_path), "--ids-from", "ids"]
    found = CliRunner().invoke(cli, arguments)
    assert found.exit_code == 2 and "found Input/output error" in found.stderr


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
