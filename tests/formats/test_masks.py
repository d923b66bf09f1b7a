from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from sift_index.formats.errors import UsageError
from sift_index.formats.masks import DocumentMasks, MaskKind, PackedMask

MakeDocument = Callable[..., DocumentMasks]


def _ca(**changes: object) -> PackedMask:
    fields: dict[str, object] = {
        "kind": MaskKind.CA,
        "packed": np.zeros((2, 3, 2), np.uint8),
        "entries": 10,
        "granule": 32,
        "levels": 1,
    }
    return PackedMask(**{**fields, **changes})  # type: ignore[arg-type]


def test_shape_is_read_from_the_packed_array() -> None:
    mask = _ca()
    assert (mask.layers, mask.heads, mask.row_entries) == (2, 3, 10)
    assert mask.unpacked().shape == (2, 3, 10)


def test_la_rows_hold_the_whole_triangle() -> None:
    packed = np.zeros((2, 3, 2), np.uint8)
    assert PackedMask(MaskKind.LA, packed, 4, 128).row_entries == 10


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"packed": np.zeros((2, 3, 3), np.uint8)}, "2 bytes a row"),
        ({"packed": np.zeros((2, 3), np.uint8)}, "layers, heads"),
        ({"packed": np.zeros((2, 3, 2), np.int8)}, "uint8"),
        ({"packed": np.zeros((0, 3, 2), np.uint8)}, "layers"),
        ({"entries": 0}, "entries"),
        ({"granule": 24}, "granule"),
        ({"levels": 3}, "levels"),
        ({"levels": 2}, "3 bytes a row"),
        ({"kind": 7}, "kind"),
        ({"kind": MaskKind.LA}, "granule"),
    ],
)
def test_an_impossible_mask_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _ca(**changes)


def test_masks_are_equal_when_all_bits_are() -> None:
    other = np.zeros((2, 3, 2), np.uint8)
    assert _ca() == _ca(packed=other)
    other[1, 2, 1] = 64
    assert _ca() != _ca(packed=other)
    assert _ca() != _ca(granule=64)


def test_counts_must_follow_from_the_tokens(make_document: MakeDocument) -> None:
    row = make_document(300)
    for changes, message in (
        ({"tokens": 320 + 1}, "CA pages"),
        ({"tokens": 0}, "tokens"),
        ({"key": b"short"}, "key of 16"),
        ({"anchor": 0}, "anchor"),
        ({"anchor": 2**64}, "anchor"),
        ({"ca": row.la}, "CA pages"),
        ({"la": row.ca}, "LA tile rows"),
        ({"la": make_document(600).la}, "LA tile rows"),
        ({"la": make_document(300, heads=4).la}, "layers, heads"),
    ):
        with pytest.raises(UsageError, match=message):
            replace(row, **changes)


def test_local_attention_may_stay_dense(make_document: MakeDocument) -> None:
    assert replace(make_document(300), la=None).la is None
