"""The Arrow schemas of the two binary files, in one place because they are the contract."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

FORMAT_VERSION = 1
META_FORMAT = b"sift.format"
META_KIND = b"sift.kind"
META_UNIT = b"sift.unit"
META_BUILD = b"sift.build"

KEY_TYPE = pa.binary(16)

PACK_FIELDS = (
    pa.field("key", KEY_TYPE, nullable=False),
    pa.field("anchor", pa.uint64(), nullable=True),
    pa.field("tokens", pa.uint32(), nullable=False),
    pa.field("la", pa.large_binary(), nullable=True),
    pa.field("ca", pa.large_binary(), nullable=False),
)


def _column(name: str, item: pa.DataType) -> pa.Field:
    """One row holds a whole list, so that one file carries tables of different lengths."""
    return pa.field(name, pa.large_list(pa.field("item", item, nullable=False)), nullable=False)


KEYTABLE_FIELDS = (
    _column("keys", KEY_TYPE),
    _column("pack", pa.uint32()),
    _column("row", pa.uint32()),
    _column("anchor", pa.uint64()),
    _column("doc_ids", pa.large_utf8()),
    _column("doc_offsets", pa.int64()),
    _column("doc_keys", pa.uint32()),
)


def pack_schema(unit: str, build_digest: str) -> pa.Schema:
    """Return the schema of a pack with its metadata."""
    extra = {META_UNIT: unit.encode(), META_BUILD: build_digest.encode()}
    return pa.schema(PACK_FIELDS, metadata=_metadata(b"pack", extra))


def keytable_schema() -> pa.Schema:
    """Return the schema of a key table with its metadata."""
    return pa.schema(KEYTABLE_FIELDS, metadata=_metadata(b"keys", {}))


def _metadata(kind: bytes, extra: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    return {META_FORMAT: str(FORMAT_VERSION).encode(), META_KIND: kind, **extra}
