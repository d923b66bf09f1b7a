"""Golden indexes: what version 1 wrote is read for ever, by this reader and by another one."""

from __future__ import annotations

import ast
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sift_index.formats import schema
from sift_index.formats.errors import FeatureError
from sift_index.formats.reader import IndexReader
from sift_index.formats.store import IndexPaths
from sift_index.formats.verify import verify_index
from tests.formats import independent_reader
from tests.formats.files import rewrite
from tests.formats.golden import generate_v1
from tests.formats.golden.content import INDEXES, Document, Index

GOLDEN = Path(__file__).parent / "golden"


def _files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def _digits(rows: tuple[str, ...], heads: int) -> list[list[list[int]]]:
    values = [[int(digit) for digit in row] for row in rows]
    return [values[i : i + heads] for i in range(0, len(values), heads)]


def _held(index: Index, version: int) -> list[Document]:
    return [document for _, _, documents in index.units[:version] for document in documents]


def _versions() -> list[tuple[str, int]]:
    return [(name, v + 1) for name, index in INDEXES.items() for v in range(len(index.units))]


@pytest.mark.parametrize(("name", "version"), _versions())
def test_todays_reader_reads_every_bit(name: str, version: int) -> None:
    index = INDEXES[name]
    reader = IndexReader.open(GOLDEN / "v1" / name, version)
    held = _held(index, version)
    assert len(reader) == len(held)
    for document in held:
        row = reader.lookup(generate_v1.key(document))
        assert row is not None
        assert row.ca.unpacked().tolist() == _digits(document.ca, index.heads)
        own = None if row.la is None else row.la.unpacked().tolist()
        assert own == (None if document.la is None else _digits(document.la, index.heads))
    names = {n: parts for entry in index.names[:version] for n, parts in entry.items()}
    assert list(reader.document_ids()) == sorted(names, key=str.encode)
    for document_id, parts in names.items():
        assert reader.document_keys(document_id) == tuple(map(generate_v1.key, parts))


@pytest.mark.parametrize("name", INDEXES)
def test_nothing_is_wrong_with_a_golden_index(name: str) -> None:
    report = verify_index(IndexPaths(GOLDEN / "v1" / name))
    assert report.ok, report.problems
    assert not report.garbage


def test_the_script_writes_the_same_bytes(tmp_path: Path) -> None:
    generate_v1.write_all(tmp_path / "v1", tmp_path / "refused")
    for folder in ("v1", "refused"):
        assert _files(tmp_path / folder) == _files(GOLDEN / folder)


def test_the_script_refuses_another_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_v1, "FORMAT_VERSION", schema.FORMAT_VERSION + 1)
    with pytest.raises(SystemExit, match="this script writes format 1"):
        generate_v1.write_all(tmp_path / "v1", tmp_path / "refused")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "message"), [("unknown-feature", "rotated-bits"), ("format-2", "format version 2")]
)
def test_an_index_of_the_future_is_refused_by_name(name: str, message: str) -> None:
    with pytest.raises(FeatureError, match=f"{message}.*upgrade"):
        IndexReader.open(GOLDEN / "refused" / name)
    with pytest.raises(ValueError, match="unknown"):
        independent_reader.read_index(GOLDEN / "refused" / name)


@pytest.mark.parametrize(("name", "version"), _versions())
def test_a_reader_written_from_the_spec_finds_the_same(name: str, version: int) -> None:
    index, root = INDEXES[name], GOLDEN / "v1" / name
    other, ours = independent_reader.read_index(root, version), IndexReader.open(root, version)
    held = _held(index, version)
    assert set(other.rows) == {generate_v1.key(document) for document in held}
    assert other.documents == {name: list(keys) for name, keys in ours.keys.documents()}
    for document in held:
        theirs, row = other.rows[generate_v1.key(document)], ours.lookup(generate_v1.key(document))
        assert row is not None
        assert theirs.ca == row.ca.unpacked().tolist() == _digits(document.ca, index.heads)
        assert theirs.la == (None if row.la is None else row.la.unpacked().tolist())
        assert (theirs.anchor, theirs.tokens) == (row.anchor or 0, document.tokens)


def test_the_other_reader_imports_nothing_of_the_project() -> None:
    tree = ast.parse(Path(independent_reader.__file__).read_text())
    names = {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    names |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    standard = {"hashlib", "json", "re", "dataclasses", "pathlib", "typing"}
    assert names == standard | {"numpy", "pyarrow"}


def test_the_comparison_sees_another_bit_order(monkeypatch: pytest.MonkeyPatch) -> None:
    root, index = GOLDEN / "v1" / "plain", INDEXES["plain"]
    monkeypatch.setattr(np, "packbits", partial(np.packbits, bitorder="little"))
    document = index.units[0][2][0]
    other = generate_v1.masks(document, index)
    assert IndexReader.open(root).lookup(other.key) != other
    assert other.ca.unpacked().tolist() != _digits(document.ca, index.heads)


def test_the_other_reader_refuses_a_changed_byte(tmp_path: Path) -> None:
    root = Path(shutil.copytree(GOLDEN / "v1" / "plain", tmp_path / "plain"))
    for path in (root / "manifest-00000002.json", root / "keys-00000002.arrow"):
        data = path.read_bytes()
        rewrite(path, data[:-1] + b"x")
        with pytest.raises(ValueError if path.suffix == ".json" else AssertionError):
            independent_reader.read_index(root)
        rewrite(path, data)
