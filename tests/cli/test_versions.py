"""delete, compact, gc and versions as a user runs them."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sift_index.cli.main import cli
from sift_index.formats.reader import IndexReader
from sift_index.formats.store import IndexPaths
from sift_index.formats.writer import publish


def call(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], input=stdin)


def as_json(*arguments: object):
    result = call(*arguments, "--output", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def built(tmp_path_factory, tiny_model_dir, local_ray) -> Path:
    folder = tmp_path_factory.mktemp("versions")
    corpus, index = folder / "corpus", folder / "index"
    corpus.mkdir()
    for number in range(4):
        (corpus / f"{number}.txt").write_text(f"Document {number}. " * (10 + 20 * number))
    (corpus / "copy.txt").write_text((corpus / "1.txt").read_text())
    result = call("build", corpus, "--model", tiny_model_dir, "--index", index)
    assert result.exit_code == 0, result.output
    return index


@pytest.fixture
def index(built: Path, tmp_path: Path) -> Path:
    return shutil.copytree(built, tmp_path / "index")


@pytest.mark.parametrize("command", ["delete", "compact", "gc", "versions"])
def test_help_has_an_example(command):
    result = call(command, "--help")
    assert result.exit_code == 0
    assert "Example:" in result.stdout and f"sift-index {command}" in result.stdout


def test_the_conflict_exit_code_is_documented():
    assert "6 another writer" in " ".join(call("--help").stdout.split())


def test_delete_compact_and_gc_free_the_disk(index):
    before = as_json("inspect", index)
    result = call("delete", index, "0.txt", "1.txt")
    assert result.exit_code == 0
    expected = "version 2: 2 documents deleted, 1 keys hidden, 1 stay with other documents"
    assert expected in " ".join(result.stdout.split())
    assert as_json("inspect", index)["dead_rows"] == 1
    compacted = as_json("compact", index)
    assert (compacted["version"], compacted["dead_rows"]) == (3, 1)
    assert call("compact", index).stdout.startswith("nothing to compact")
    assert as_json("inspect", index, "--version", 1) == before
    would = as_json("gc", index, "--keep", 1, "--dry-run")
    assert (would["versions"], would["dry_run"]) == ([1, 2], True)
    result = call("gc", index, "--keep", 1)
    assert "removed versions: 1, 2;" in result.stdout and "kept versions: 3" in result.stdout
    assert not any((index / name).exists() for name in would["files"])
    after = as_json("inspect", index)
    assert (after["documents"], after["keys"], after["dead_rows"]) == (3, 3, 0)
    assert as_json("verify", index)["garbage"] == []
    gone = call("inspect", index, "--version", 1)
    assert gone.exit_code == 4 and "found version 3 alone" in gone.stderr


def test_ids_come_from_a_file_or_stdin(index, tmp_path):
    (tmp_path / "ids").write_text("0.txt\n\n2.txt\n")
    assert as_json("delete", index, "--ids-from", tmp_path / "ids")["documents"] == 2
    result = call("delete", index, "3.txt", "--ids-from", "-", stdin="copy.txt\r\n")
    assert result.exit_code == 0
    assert list(IndexReader.open(index).document_ids()) == ["1.txt"]
    (tmp_path / "ids").write_bytes(b"caf\xe9")
    result = call("delete", index, "--ids-from", tmp_path / "ids")
    assert result.exit_code == 2 and "UTF-8" in result.stderr


def test_an_unknown_id_is_named_with_exit_code_2(index):
    result = call("delete", index, "0.txt", "9.txt")
    assert result.exit_code == 2
    assert "'9.txt'" in result.stderr and "nothing was deleted" in result.stderr
    assert as_json("versions", index)["current"] == 1
    assert as_json("delete", index, "9.txt", "--ignore-missing")["version"] is None
    assert as_json("delete", index, "9.txt", "0.txt", "--ignore-missing")["version"] == 2
    assert call("delete", index).exit_code == 2
    missing = call("delete", index / "none", "a")
    assert missing.exit_code == 4 and "sift-index build" in missing.stderr


def test_versions_are_listed(index):
    call("delete", index, "0.txt")
    found = as_json("versions", index)
    assert found["current"] == 2
    assert [entry["documents"] for entry in found["versions"]] == [5, 4]
    assert [entry["writer"] for entry in found["versions"]] == ["sift-index", "sift-index delete"]
    text = call("versions", index).stdout
    assert [line.split()[3] for line in text.splitlines()[2:]] == ["build", "delete"]


def test_one_version_can_be_verified(index):
    call("delete", index, "0.txt")
    path = IndexPaths(index).manifest_path(1)
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-1])
    assert call("verify", index).exit_code == 4
    assert as_json("verify", index, "--version", 2)["ok"]
    assert call("verify", index, "--version", 1).exit_code == 4
    assert call("verify", index, "--version", 7).exit_code == 4


def test_the_writer_that_lost_gets_exit_code_6(index, monkeypatch):
    from sift_index.formats.draft import publish_draft

    def late(*args, **kwargs):
        current = IndexReader.open(index).manifest
        publish(IndexPaths(index), current.fingerprint, [], {"e": []}, previous=current)
        return publish_draft(*args, **kwargs)

    monkeypatch.setattr("sift_index.formats.deletion.publish_draft", late)
    result = call("delete", index, "0.txt", "--output", "json")
    assert result.exit_code == 6
    error = json.loads(result.stdout)["error"]
    assert (error["type"], error["retryable"]) == ("CommitConflictError", True)
    assert "run the same command again" in result.stderr


@pytest.mark.parametrize("options", [["gc"], ["gc", "--keep", "0"], ["compact", "--pack-mib", "0"]])
def test_wrong_options_are_refused(index, options):
    assert call(options[0], index, *options[1:]).exit_code == 2


def test_eval_opens_an_older_version(index):
    result = call("eval", index, "--version", 9)
    assert result.exit_code == 4 and "version 9" in result.stderr
    result = call("eval", "--model", "smollm2-135m", "--version", 1)
    assert result.exit_code == 2 and "INDEX" in result.stderr


def test_a_byte_order_mark_is_not_part_of_the_first_id(index, tmp_path):
    (tmp_path / "ids").write_bytes(b"\xef\xbb\xbf0.txt\r\n2.txt\r\n")
    done = as_json("delete", index, "--ids-from", tmp_path / "ids", "--ignore-missing")
    assert (done["documents"], done["missing"]) == (2, 0)
    result = call("delete", index, "--ids-from", "-", stdin="\ufeff3.txt\n")
    assert result.exit_code == 0, result.output


def test_ids_that_were_passed_over_are_counted(index):
    none = as_json("delete", index, "8.txt", "9.txt", "9.txt", "--ignore-missing")
    assert (none["version"], none["missing"]) == (None, 2)
    some = as_json("delete", index, "0.txt", "9.txt", "--ignore-missing")
    assert (some["documents"], some["missing"]) == (1, 1)
    text = call("delete", index, "1.txt", "8.txt", "9.txt", "--ignore-missing").stdout
    assert "passed over: 2 ids that the index does not have" in text
    assert "passed over" not in call("delete", index, "2.txt").stdout


def test_help_says_where_ids_with_a_dash_go(index):
    assert "start with - go behind --" in " ".join(call("delete", "--help").stdout.split())
    result = call("delete", index, "--ignore-missing", "--", "-x.txt", "0.txt")
    assert result.exit_code == 0 and "passed over: 1 ids" in result.stdout


def test_inspect_lists_document_ids(index):
    assert as_json("inspect", index, "--ids")["ids"] == [
        "0.txt", "1.txt", "2.txt", "3.txt", "copy.txt"
    ]  # fmt: skip
    assert call("inspect", index, "--ids", "co").stdout == "copy.txt\n"
    assert call("inspect", index, "--ids", "none").stdout == ""
    both = call("inspect", index, "--ids", "co", "--document", "0.txt")
    assert both.exit_code == 2 and "leave one out" in both.stderr
