"""The numbers printed in SPEC.md are the ones the code produces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sift_index.formats import bits
from sift_index.formats.blob import RowIdentity, encode_blob
from sift_index.formats.canonical import dump_checked
from sift_index.formats.identity import anchor, document_key
from sift_index.formats.manifest import Manifest
from sift_index.formats.masks import MaskKind, PackedMask
from sift_index.formats.maskshape import MaskShape, promised_shape
from sift_index.formats.receipts import Receipt
from sift_index.formats.schema import KEYTABLE_FIELDS, PACK_FIELDS
from tests.formats.golden import generate_v1
from tests.formats.golden.content import INDEXES

SPEC = (Path(__file__).parents[2] / "formats" / "SPEC.md").read_text()
IDS = list(range(40))


@pytest.mark.parametrize(
    ("entries", "levels"),
    [([1, 0, 1, 1, 0, 0, 0, 1, 1, 0, 1], 1), ([3, 0, 2, 1, 1], 2)],
)
def test_bit_examples(entries: list[int], levels: int) -> None:
    packed = bits.pack(np.array(entries, np.uint8), levels).tobytes().hex(" ")
    assert f"| {' '.join(map(str, entries))} | {levels} | `{packed}` |" in SPEC


def test_triangle_example() -> None:
    row = np.zeros(bits.triangle(3), np.uint8)
    for tile in ((0, 0), (1, 0), (1, 1), (2, 1), (2, 2)):
        row[bits.triangle_index(*tile)] = 1
    example = "tiles (0,0)=1 (1,0)=1 (1,1)=1 (2,0)=0 (2,1)=1 (2,2)=1"
    assert f"| {example} | 1 | `{bits.pack(row, 1).tobytes().hex()}` |" in SPEC


def test_identity_example() -> None:
    assert f"key `{document_key(IDS).hex()}`, anchor `{anchor(IDS):#x}`" in SPEC


def test_blob_example() -> None:
    packed = bits.pack(np.array([[[1, 0], [1, 1]]], np.uint8), 1)
    mask = PackedMask(MaskKind.CA, packed, 2, 32)
    blob = encode_blob(mask, RowIdentity(document_key(IDS), anchor(IDS), 40))
    parts = (blob[:24], blob[24:32], blob[32:])
    assert "   ".join(part.hex(" ") for part in parts) in SPEC


def test_every_column_and_field_is_described() -> None:
    for field in PACK_FIELDS:
        kind = str(field.type).replace("[", "(").replace("]", ")")
        assert f"| {field.name} | {kind} | " in SPEC
    for field in KEYTABLE_FIELDS:
        assert f"| {field.name}: " in SPEC
    tables = SPEC[SPEC.index("| manifest field") : SPEC.index("## Fingerprint")]
    for cls in (Manifest, Receipt):
        for name in cls.__dataclass_fields__:
            assert name in tables, name


def test_json_example() -> None:
    assert f"```\n{dump_checked({'a': [1]}).decode()}```" in SPEC


def test_every_field_of_the_layout_is_described() -> None:
    described = SPEC[SPEC.index("`serve.layout`, where") : SPEC.index("## Checksums")]
    layout = INDEXES["plain"]
    found = promised_shape(generate_v1.fingerprint(layout))
    assert found == MaskShape(layout.layers, layout.heads, layout.page, layout.levels)
    assert all(name in described for name in generate_v1.fingerprint(layout).serve["layout"])
