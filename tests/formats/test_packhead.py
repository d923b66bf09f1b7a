"""The narrow columns of a pack: the same as a reader sees, for a small part of the bytes.

What both refuse is tested in `test_packs`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sift_index.formats.errors import FormatError, IntegrityError
from sift_index.formats.fileinfo import sha256_hex
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.masks import DocumentMasks
from sift_index.formats.packhead import read_pack_head
from sift_index.formats.packs import Pack, PackInfo, pack_bytes
from sift_index.formats.receipts import Receipt
from sift_index.formats.store import IndexPaths
from sift_index.formats.writer import publish
from tests.formats.files import flips, rewrite

MakeDocument = Callable[..., DocumentMasks]
CommitUnit = Callable[..., Receipt]


def _write(folder: Path, unit: str, rows: list[DocumentMasks]) -> tuple[Path, PackInfo]:
    data = pack_bytes(unit, "b", rows)
    path = folder / f"{unit}-0.arrow"
    rewrite(path, data)
    return path, PackInfo(path.name, len(data), sha256_hex(data), len(rows))


@pytest.mark.parametrize("rows", [0, 1, 90])
@pytest.mark.parametrize("unit", ["u", "u" * 190])
def test_a_head_is_what_a_reader_sees(
    make_document: MakeDocument, tmp_path: Path, rows: int, unit: str
) -> None:
    sizes = [5 + 7 * i for i in range(rows)]  # the first have no anchor
    documents = [make_document(size, i, la=i % 3 > 0) for i, size in enumerate(sizes)]
    path, info = _write(tmp_path, unit, documents)
    head, pack = read_pack_head(path, info, "b"), Pack.open(path, info)
    assert (head.keys == pack.keys()).all() and head.keys.shape == (rows, 16)
    assert (head.anchors == pack.anchors()).all() and head.anchors.dtype == np.uint64
    assert (head.tokens == pack.tokens()).all() and head.tokens.dtype == np.uint32


def test_a_pack_of_another_build_is_refused(make_document: MakeDocument, tmp_path: Path) -> None:
    path, info = _write(tmp_path, "u", [make_document(300)])
    with pytest.raises(IntegrityError, match=r"sift\.build"):
        read_pack_head(path, info, "other")


def test_a_flipped_bit_is_an_error_or_leaves_a_head_of_its_shape(
    make_document: MakeDocument, tmp_path: Path
) -> None:
    rows = [make_document(260, i, layers=1, heads=2, la=i > 1) for i in range(3)]
    path, info = _write(tmp_path, "u", rows)
    refused = 0
    for damaged in flips(path.read_bytes()):
        rewrite(path, damaged)
        try:
            head = read_pack_head(path, info, "b")
        except FormatError as error:
            assert "u-0.arrow" in str(error)
            refused += 1
            continue
        assert (head.keys.shape, head.anchors.shape, head.tokens.shape) == ((3, 16), (3,), (3,))
    assert refused > 200


def _publish(paths: IndexPaths, fingerprint: Fingerprint, receipt: Receipt) -> None:
    publish(paths, fingerprint, [receipt], {"a": [bytes.fromhex(receipt.keys[0])]})


def test_a_receipt_that_is_not_its_packs_is_not_published(
    paths: IndexPaths,
    fingerprint: Fingerprint,
    make_document: MakeDocument,
    commit_unit: CommitUnit,
) -> None:
    rows = [make_document(300), make_document(90, 1)]
    receipt = commit_unit(paths, "unit", rows, fingerprint.build_digest)
    others = replace(receipt, keys=(receipt.keys[0], "f" * 32))
    for wrong, message in (
        (others, r"expected the keys of unit\.json"),
        (replace(receipt, tokens=391), r"expected the 391 tokens of unit\.json, found 390"),
    ):
        with pytest.raises(IntegrityError, match=message):
            _publish(paths, fingerprint, wrong)
    assert not [*paths.root.glob("manifest-*")]
    _publish(paths, fingerprint, replace(receipt, keys=receipt.keys[::-1]))


def test_publishing_maps_no_pack(
    paths: IndexPaths,
    fingerprint: Fingerprint,
    make_document: MakeDocument,
    commit_unit: CommitUnit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process may have 65,530 mappings (Linux's default); a version may have more packs."""
    receipt = commit_unit(paths, "unit", [make_document(300)], fingerprint.build_digest)
    monkeypatch.delattr("sift_index.formats.local.pa.memory_map")
    _publish(paths, fingerprint, receipt)
