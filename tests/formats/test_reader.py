from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sift_index.formats.errors import (
    FormatError,
    IndexNotFoundError,
    IntegrityError,
    SiftError,
)
from sift_index.formats.reader import IndexReader
from tests.formats.files import rewrite

if TYPE_CHECKING:
    from tests.formats.conftest import SmallIndex

ROOT = Path(__file__).parents[2]


def test_masks_come_back_by_key_and_by_document(small_index: SmallIndex) -> None:
    index = IndexReader.open(str(small_index.paths.root))
    keys = [row.key for row in small_index.rows]
    assert [index.lookup(key) for key in keys] == list(small_index.rows)
    assert index.lookup(bytes(16)) is None
    assert keys[0] in index
    assert bytes(16) not in index
    assert len(index) == 3
    assert index.document_keys("ab") == (keys[0], keys[1])
    assert index.document_keys("none") == ()


def test_an_older_version_does_not_see_what_came_later(small_index: SmallIndex) -> None:
    index = IndexReader.open(small_index.paths.root, version=1)
    assert index.lookup(small_index.rows[0].key) == small_index.rows[0]
    assert index.lookup(small_index.rows[2].key) is None
    assert index.document_keys("c") == ()


def test_packs_are_opened_when_needed(small_index: SmallIndex) -> None:
    small_index.paths.pack_path(small_index.receipts[1].pack.name).unlink()
    index = IndexReader.open(small_index.paths.root)
    assert index.lookup(small_index.rows[0].key) == small_index.rows[0]
    with pytest.raises(IntegrityError, match=small_index.receipts[1].pack.name):
        index.lookup(small_index.rows[2].key)


def test_no_index_is_said_so(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(IndexNotFoundError, match="sift-index build"):
            IndexReader.open(path)


@pytest.mark.parametrize("name", ["manifest", "keys", "pack"])
def test_a_symlink_inside_the_index_is_refused(small_index: SmallIndex, name: str) -> None:
    paths = small_index.paths
    path = {
        "manifest": paths.manifest_path(2),
        "keys": paths.keytable_path(2),
        "pack": paths.pack_path(small_index.receipts[0].pack.name),
    }[name]
    path.rename(paths.root / "elsewhere")
    path.symlink_to(paths.root / "elsewhere")
    with pytest.raises(IntegrityError, match="regular file"):
        IndexReader.open(paths.root).lookup(small_index.rows[0].key)


def test_any_damaged_file_ends_in_an_error_or_the_right_answer(small_index: SmallIndex) -> None:
    """Flip one bit at 200 places of each file: a lookup never returns other masks."""
    files = [path for path in small_index.paths.root.rglob("*") if path.is_file()]
    for path in files:
        data = path.read_bytes()
        for place in range(0, len(data), max(1, len(data) // 200)):
            rewrite(path, data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
            try:
                index = IndexReader.open(small_index.paths.root)
                assert [index.lookup(row.key) for row in small_index.rows] == [*small_index.rows]
            except FormatError as error:
                assert path.name in str(error)
        rewrite(path, data)


def test_a_manifest_that_counts_wrong_is_refused(small_index: SmallIndex) -> None:
    from dataclasses import replace

    from sift_index.formats.canonical import dump_checked

    manifest = small_index.versions[1]
    forged = replace(manifest, counts=replace(manifest.counts, documents=9))
    rewrite(small_index.paths.manifest_path(2), dump_checked(forged.to_json()))
    with pytest.raises(IntegrityError, match="9 documents"):
        IndexReader.open(small_index.paths.root)


def test_reading_needs_neither_torch_nor_zstandard(small_index: SmallIndex) -> None:
    code = (
        "import sys; from sift_index.formats.reader import IndexReader;"
        "index = IndexReader.open(sys.argv[1]);"
        "row = index.lookup(bytes.fromhex(sys.argv[2]));"
        "bad = {'torch', 'triton', 'ray', 'transformers', 'zstandard'} & set(sys.modules);"
        "print(row.tokens, sorted(bad))"
    )
    seen = subprocess.run(
        [sys.executable, "-c", code, str(small_index.paths.root), small_index.rows[0].key.hex()],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert seen.stdout.strip() == "300 []"


def test_every_error_is_of_one_tree() -> None:
    assert issubclass(FormatError, SiftError)
    assert issubclass(IntegrityError, FormatError)
