"""The shape that a fingerprint promises for every mask, held against each blob before it is used.

A blob says its own shape, and so does a forged one: with other layers or heads than the index's
it would be unpacked to gigabytes, or decoded past the end of a GPU buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sift_index.formats.blob import Header
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.masks import TILE, MaskKind, granules
from sift_index.formats.problems import damaged

_FIELDS = ("layers", "mask_heads", "page_size", "levels")


class MaskShape(NamedTuple):
    """Layers, stored heads, page size and bits per entry of all masks of an index."""

    layers: int
    heads: int
    page: int
    levels: int


def promised_shape(fingerprint: Fingerprint) -> MaskShape | None:
    """Return what `serve.layout` says, or None where a fingerprint records no layout."""
    layout: Any = fingerprint.serve.get("layout")
    if not isinstance(layout, Mapping):
        return None
    values: list[Any] = [layout.get(name) for name in _FIELDS]
    return MaskShape(*values) if all(type(value) is int for value in values) else None


def check_header(header: Header, kind: MaskKind, tokens: int, shape: MaskShape | None) -> None:
    """Raise IntegrityError unless a header fits its column, its row and the index.

    Costs no allocation, so it comes before unpacking; `shape` None checks column and row only.
    """
    expected = (kind.value, granules(tokens, header.granule))
    if (header.kind, header.entries) != expected:
        found = f"{header.kind}, {header.entries}"
        raise damaged("blob header", f"kind, entries {expected} for {tokens} tokens", found)
    if shape is not None:
        page = TILE if kind == MaskKind.LA else shape.page
        wanted = (shape.layers, shape.heads, page, shape.levels)
        actual = (header.layers, header.heads, header.granule, header.levels)
        if actual != wanted:
            raise damaged("blob header", f"layers, heads, granule, levels {wanted}", actual)
