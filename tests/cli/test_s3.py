"""The commands on an index in an object store."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sift_index.cli.main import cli
from sift_index.runtime.index import SiftIndex
from tests.object_store import Bucket

GOLDEN = Path(__file__).parents[1] / "formats" / "golden" / "v1" / "plain"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def as_json(*arguments: object):
    result = call(*arguments, "--output", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def _upload(bucket: Bucket, folder: Path) -> None:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        bucket.put(f"index/{path.relative_to(folder).as_posix()}", path.read_bytes())


@pytest.fixture
def index(bucket: Bucket) -> str:
    """A golden index, uploaded as a user would."""
    _upload(bucket, GOLDEN)
    return bucket.url("index")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The same index in a folder."""
    return Path(shutil.copytree(GOLDEN, tmp_path / "folder"))


@pytest.mark.parametrize("command", ["inspect", "versions", "verify"])
def test_reading_commands_say_what_they_say_of_a_folder(index, folder, command):
    assert as_json(command, index) == as_json(command, folder)


def test_changing_commands_do_what_they_do_in_a_folder(index, folder):
    name = as_json("inspect", folder, "--ids")["ids"][0]
    for where in (index, folder):
        assert as_json("delete", where, name)["documents"] == 1
        assert as_json("compact", where)["dead_rows"] == 1
    found, expected = as_json("inspect", index), as_json("inspect", folder)
    assert {**found, "created": ""} == {**expected, "created": ""}
    assert as_json("gc", index, "--keep", 1)["kept"] == [as_json("versions", index)["current"]]
    assert as_json("verify", index)["ok"]


def test_an_index_is_opened_by_its_address(bucket: Bucket, local_ray, tiny_model_dir, tmp_path):
    (tmp_path / "corpus").mkdir()
    text = tmp_path / "corpus" / "mill.txt"
    text.write_text("The mill stands by the river. " * 20)
    built = call(
        "build", tmp_path / "corpus", "--model", tiny_model_dir, "--index", tmp_path / "built"
    )
    assert built.exit_code == 0, built.output
    _upload(bucket, tmp_path / "built")
    with pytest.warns(UserWarning, match="no measured quality"):
        opened, local = SiftIndex.open(bucket.url("index")), SiftIndex.open(tmp_path / "built")
    key = local.reader.keys.key(0)
    assert opened.reader.lookup(key) == local.reader.lookup(key)
    assert opened.fingerprint == local.fingerprint
    explained = as_json("explain", bucket.url("index"), text, "--model", tiny_model_dir)
    expected = as_json("explain", tmp_path / "built", text, "--model", tiny_model_dir)
    assert explained == expected and explained["hits"] == 1


@pytest.mark.parametrize(
    ("address", "code", "message"),
    [
        ("s3://no-such-bucket/index", 4, "no bucket no-such-bucket"),
        ("ftp://host/index", 2, "scheme of s3, gs, file"),
        ("no-such-folder/index", 4, "no such folder"),
        ("", 2, "empty text"),
    ],
)
def test_a_place_without_an_index_is_an_error(bucket: Bucket, address, code, message):
    for command in ("inspect", "versions", "verify"):
        result = call(command, address)
        assert result.exit_code == code and message in result.stderr
        assert "Traceback" not in result.stderr
