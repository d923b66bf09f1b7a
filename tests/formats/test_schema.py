"""manifest.schema.json says of a manifest's structure what the reader says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from sift_index.formats.canonical import dump_checked
from sift_index.formats.errors import FormatError
from sift_index.formats.manifest import read_manifest
from tests.formats.files import rewrite

if TYPE_CHECKING:
    from tests.formats.conftest import SmallIndex

FOLDER = Path(__file__).parent
SCHEMA = json.loads((FOLDER.parents[1] / "formats" / "manifest.schema.json").read_text())
VALIDATOR = Draft202012Validator(SCHEMA)


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", sorted((FOLDER / "golden" / "v1").rglob("manifest-*")), ids=str)
def test_golden_manifests_fit(path: Path) -> None:
    VALIDATOR.validate(json.loads(path.read_bytes()))


def test_every_field_that_is_written_is_described(small_index: SmallIndex) -> None:
    written = json.loads(small_index.paths.manifest_path(2).read_bytes())
    VALIDATOR.validate(written)
    assert set(written) == set(SCHEMA["properties"]) == set(SCHEMA["required"])


def _put(*path: Any) -> Callable[[dict[str, Any]], None]:
    *way, last, value = path

    def change(document: dict[str, Any]) -> None:
        for step in way:
            document = document[step]
        document[last] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _put("version", "2"),
        _put("counts", "keys", -1),
        _put("counts", "tokens", 2**63),
        _put("counts", 3),
        _put("fingerprint", "serve", None),
        _put("format_version", 2),
        _put("key_table", "name", "../keys.arrow"),
        _put("key_table", "sha256", "0" * 63),
        _put("packs", 0, "rows", None),
        _put("packs", 0, "name", "a/b"),
        _put("packs", 0, "bytes", 0.5),
        _put("quality", []),
        _put("reader_features", [1]),
        _put("units", ["a..b"]),
        _put("units", ["x" * 201]),
        _put("writer", None),
        *(lambda document, name=name: document.pop(name) for name in ("packs", "created", "units")),
    ],
)
def test_schema_and_reader_refuse_the_same(
    small_index: SmallIndex, change: Callable[[dict[str, Any]], None]
) -> None:
    document = small_index.versions[1].to_json()
    change(document)
    assert not VALIDATOR.is_valid({**document, "checksum": "0" * 32})
    rewrite(small_index.paths.manifest_path(2), dump_checked(document))
    with pytest.raises(FormatError):
        read_manifest(small_index.paths)


def test_a_field_from_the_future_fits(small_index: SmallIndex) -> None:
    document = {**small_index.versions[1].to_json(), "colour": "blue", "checksum": "0" * 32}
    VALIDATOR.validate(document)
