"""`sift-index export` and `sift-index import` as a user runs them."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sift_index.cli.main import cli
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.store import IndexPaths
from sift_index.formats.writer import publish


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in arguments])


@pytest.fixture
def index(tmp_path: Path) -> Path:
    paths = IndexPaths(tmp_path / "index")
    paths.create()
    publish(paths, Fingerprint({}, {}), [], {"a": []})
    return paths.root


def test_export_and_import_say_what_they_did(index, tmp_path):
    result = call("export", index, tmp_path / "out.parquet")
    assert result.exit_code == 0, result.output
    assert "version 1, 0 rows of 0 packs, 0 receipts" in " ".join(result.output.split())
    result = call("import", tmp_path / "out.parquet", tmp_path / "again", "--output", "json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["identical"] is True
    assert call("verify", tmp_path / "again").exit_code == 0


def test_exit_codes_say_what_is_wrong(index, tmp_path):
    assert call("export", index, index).exit_code == 2  # something is there
    assert call("export", tmp_path / "none", tmp_path / "out").exit_code == 4
    assert call("export", index, tmp_path / "out", "--version", 7).exit_code == 4
    (tmp_path / "text.parquet").write_text("no parquet")
    result = call("import", tmp_path / "text.parquet", tmp_path / "again")
    assert result.exit_code == 4
    assert "expected a whole Parquet file" in result.stderr


def test_an_export_in_the_wrong_place_is_exit_code_2(index, tmp_path):
    missing = call("import", tmp_path / "none", tmp_path / "again")
    assert missing.exit_code == 2 and "no such file" in missing.stderr
    already = call("import", index, tmp_path / "again")
    assert already.exit_code == 2 and "an index already" in already.stderr
    (tmp_path / "file").write_text("")
    blamed = call("export", index, tmp_path / "file" / "x.parquet")
    assert blamed.exit_code == 2 and "found a file there" in blamed.stderr


def test_a_shell_in_the_folder_that_was_replaced_is_told(index, tmp_path, monkeypatch):
    call("export", index, tmp_path / "out.parquet")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    result = call("import", "../out.parquet", ".", "--output", "json")
    assert result.exit_code == 0, result.output
    assert "cd" in result.stderr and json.loads(result.stdout)["path"] == "."
    monkeypatch.chdir(tmp_path / "here")
    assert call("verify", ".").exit_code == 0


@pytest.mark.parametrize("out", ["", "s3://bucket/out.parquet"])
def test_an_output_that_is_no_local_path_is_refused(index, tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert call("export", index, out).exit_code == 2
    call("export", index, tmp_path / "there.parquet")
    assert call("import", tmp_path / "there.parquet", out).exit_code == 2
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "there.parquet"])
