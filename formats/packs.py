"""Packs: the masks of one unit in one mapped Arrow file that is never written twice.

The name holds the hash of the content, so a late duplicate of a unit either is the same file or
another name; a committed pack cannot be damaged by a worker that was thought dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sift_index.formats.arrowfile import arrow_errors, buffer_view, ipc_bytes, read_batch
from sift_index.formats.blob import (
    Codec,
    Layout,
    RowIdentity,
    blob_checksum,
    decode_blob,
    encode_blob,
    read_header,
)
from sift_index.formats.errors import IntegrityError, UsageError
from sift_index.formats.fileinfo import PackInfo, sha256_hex
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.keyorder import rising
from sift_index.formats.location import Location
from sift_index.formats.masks import DocumentMasks, MaskKind
from sift_index.formats.maskshape import MaskShape, check_header, promised_shape
from sift_index.formats.problems import damaged, misused
from sift_index.formats.residency import touch
from sift_index.formats.rowview import BlobColumn, RowColumns, row_view
from sift_index.formats.schema import META_BUILD, pack_schema
from sift_index.formats.store import (
    IndexPaths,
    freshen,
    map_file,
    plain_name,
    read_file,
    write_if_absent,
)

__all__ = ["Codec", "Pack", "PackInfo", "pack_bytes", "write_pack"]


def write_pack(
    paths: IndexPaths,
    unit: str,
    build_digest: str,
    rows: Sequence[DocumentMasks],
    codec: Codec = Codec.RAW,
) -> PackInfo:
    """Write the rows of a unit, sorted by key, as `<unit>-<sha256[:16]>.arrow`.

    Same rows, same bytes, same name. `rows` may be empty (every document of the unit failed).
    Raises UsageError for two rows with one key, BuildError when the file cannot be written,
    IntegrityError when the name exists with other bytes.
    """
    return write_pack_file(paths, unit, pack_bytes(unit, build_digest, rows, codec), len(rows))


def write_pack_file(paths: IndexPaths, unit: str, data: bytes, rows: int) -> PackInfo:
    """Write the content of a pack under its name; raise as `write_pack` does."""
    plain_name(unit, "unit id")
    digest = sha256_hex(data)
    path = paths.pack_path(f"{unit}-{digest[:16]}.arrow")
    if not write_if_absent(path, data):
        if not freshen(path):  # gc took the old file in this moment
            return write_pack_file(paths, unit, data, rows)
        if read_file(path, limit=len(data)) != data:
            advice = "remove this file and run again"
            raise damaged(path, "the bytes its name says", "others", advice)
    return PackInfo(path.name, len(data), digest, rows)


def pack_bytes(
    unit: str, build_digest: str, rows: Sequence[DocumentMasks], codec: Codec = Codec.RAW
) -> bytes:
    """Return the file content of a pack; raises UsageError for two rows with one key."""
    rows = sorted(rows, key=lambda row: row.key)
    _check_rows(rows)
    blobs = [_encode(row, codec) for row in rows]
    columns = PackColumns(
        [row.key for row in rows],
        [row.anchor for row in rows],
        [row.tokens for row in rows],
        [la for la, _ in blobs],
        [ca for _, ca in blobs],
    )
    return columns_bytes(unit, build_digest, columns)


class PackColumns(NamedTuple):
    """The columns of a pack, sorted by key; None where a row has no anchor or LA blob."""

    key: Sequence[bytes]
    anchor: Sequence[int | None]
    tokens: Sequence[int]
    la: Sequence[bytes | None]
    ca: Sequence[bytes]


def columns_bytes(unit: str, build_digest: str, columns: PackColumns) -> bytes:
    """Return the file content of a pack from its columns as they are; same columns, same bytes."""
    schema = pack_schema(unit, build_digest)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return ipc_bytes(pa.record_batch(arrays, schema=schema))


class Pack:
    """An open pack: a mapped file whose rows are checked when they are first used.

    `seen(i, key, layout)` returns a row that `row` accepted before, without checking it again.
    """

    def __init__(
        self, path: Location, info: PackInfo, data: pa.Buffer, batch: pa.RecordBatch
    ) -> None:
        """Wrap a validated batch; use `Pack.open`."""
        self.path, self.info, self._data, self._count = path, info, data, batch.num_rows
        self.batch = batch
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        self._keys = buffer_view(columns["key"].buffers()[1], "B", 16 * self._count)
        self._tokens = buffer_view(columns["tokens"].buffers()[1], "I", self._count)
        self._anchors = np.asarray(columns["anchor"].fill_null(0)).astype(np.uint64, copy=False)
        self._anchor_items = np.ascontiguousarray(self._anchors).data
        self._has_la = np.asarray(columns["la"].is_valid().to_numpy(zero_copy_only=False)).tobytes()
        self._la, self._ca = (_Blobs(columns[name], self._count) for name in ("la", "ca"))
        views = (self._anchor_items, self._tokens, self._has_la)
        self.seen = row_view(RowColumns(*views, self._la.column, self._ca.column))
        self._verified = bytearray(self._count)
        self._check_keys(columns["anchor"])

    @classmethod
    def open(cls, path: Location, info: PackInfo) -> Pack:
        """Map a pack and check size, schema, row count, offsets and key order.

        Raises IntegrityError naming the file, FeatureError for a newer format.
        """
        data = map_file(path, info.bytes, info.sha256)
        with arrow_errors(path):
            found = pa.ipc.open_file(data).schema.metadata or {}
            schema = pack_schema(info.unit, found.get(META_BUILD, b"").decode())
        batch = read_batch(data, schema, path)
        if batch.num_rows != info.rows:
            raise damaged(path, f"{info.rows} rows", batch.num_rows)
        with arrow_errors(path):
            pack = cls(path, info, data, batch)
        pack.build_digest = found[META_BUILD].decode()
        return pack

    build_digest: str = ""
    _shape: MaskShape | None = None

    def require_origin(self, fingerprint: Fingerprint) -> None:
        """Bind the pack to an index: from now on each mask must have the index's shape.

        Raises IntegrityError when another build wrote the pack.
        """
        wanted = fingerprint.build_digest
        if self.build_digest != wanted:
            raise damaged(self.path, f"a pack of build {wanted}", self.build_digest)
        self._shape = promised_shape(fingerprint)

    def __len__(self) -> int:
        return int(self._count)

    def key(self, i: int) -> bytes:
        """Return the key of row i."""
        return self._keys[16 * i : 16 * i + 16].tobytes()

    def keys(self) -> NDArray[np.uint8]:
        """Return all keys, uint8 [rows, 16], a view of the file."""
        return np.frombuffer(self._keys, np.uint8).reshape(self._count, 16)

    def anchors(self) -> NDArray[np.uint64]:
        """Return all anchors, uint64 [rows]; 0 where a document has none."""
        return self._anchors

    def tokens(self) -> NDArray[np.uint32]:
        """Return all token counts, uint32 [rows], a view of the file."""
        return np.frombuffer(self._tokens, np.uint32)

    def row(self, i: int, verify: bool = True) -> DocumentMasks:
        """Return row i; raw masks are views of the mapped file.

        Blob checksums are checked the first time a row is used, unless `verify` is false.
        Raises IntegrityError naming file and row, UsageError for a row that does not exist.
        """
        if not 0 <= i < self._count:
            raise misused(f"{self.path}: row", f"0..{self._count - 1}", i, "look the key up first")
        if self._verified[i]:
            return self.seen(i, self.key(i), self.layout(i))
        try:
            masks = self._decode(i, verify, False)
        except (IntegrityError, UsageError) as error:
            raise IntegrityError(f"{self.path} row {i}: {error}") from error
        if verify:
            self._verified[i] = 1  # two threads may both check, which is harmless
        return masks

    def layout(self, i: int) -> Layout:
        """Return what the header of row i's CA blob says."""
        return self._ca.column.layout(i)

    def unpacked_bytes(self, i: int) -> int:
        """Return the bytes that decoding row i allocates: 0 where all its masks are views."""
        blobs = [self._ca[i], *([self._la[i]] if self._has_la[i] else [])]
        headers = map(read_header, blobs)
        return sum(header.raw_bytes for header in headers if header.codec)

    def touch(self) -> None:
        """Read every page of the file into memory."""
        touch(self._data)

    def verify(self) -> None:
        """Re-hash the whole file and decode every row; raise IntegrityError naming the file."""
        found = sha256_hex(self._data)
        if found != self.info.sha256:
            raise damaged(self.path, f"sha256 {self.info.sha256}", found)
        for i in range(self._count):
            try:
                self._decode(i, True, True)
            except (IntegrityError, UsageError) as error:
                raise IntegrityError(f"{self.path} row {i}: {error}") from error

    def _decode(self, i: int, verify: bool, full: bool) -> DocumentMasks:
        key, anchor, tokens = self.key(i), self._anchor_items[i] or None, self._tokens[i]
        la, linked = None, 0
        if self._has_la[i]:
            blob = self._la[i]
            check_header(read_header(blob), MaskKind.LA, tokens, self._shape)
            la = decode_blob(blob, RowIdentity(key, anchor, tokens), verify, full=full)
            linked = blob_checksum(blob)
        identity = RowIdentity(key, anchor, tokens, linked)
        blob = self._ca[i]
        # Before anything is unpacked.
        check_header(read_header(blob), MaskKind.CA, tokens, self._shape)
        ca = decode_blob(blob, identity, verify, full=full)
        return DocumentMasks(key, anchor, tokens, ca, la)

    def _check_keys(self, anchor: pa.Array) -> None:
        if not rising(self.keys()):
            raise damaged(self.path, "sorted keys without duplicates", "another order")
        if int((self._anchors == 0).sum()) != anchor.null_count:
            raise damaged(self.path, "anchors other than 0", "an anchor 0 that is not null")


class _Blobs:
    """A large_binary column as slices of the mapped file, without pyarrow on the hot path."""

    def __init__(self, column: pa.Array, count: int) -> None:
        _, offsets, data = column.buffers()
        places = buffer_view(offsets, "q", count + 1 if count else 0)
        view = buffer_view(data, "B", data.size if data is not None else 0)
        self.column = BlobColumn(places, view)

    def __getitem__(self, i: int) -> memoryview:
        offsets, data = self.column
        return data[offsets[i] : offsets[i + 1]]


def _encode(row: DocumentMasks, codec: Codec) -> tuple[bytes | None, bytes]:
    la, linked = None, 0
    if row.la is not None:
        la = encode_blob(row.la, RowIdentity(row.key, row.anchor, row.tokens), codec)
        linked = blob_checksum(la)
    identity = RowIdentity(row.key, row.anchor, row.tokens, linked)
    return la, encode_blob(row.ca, identity, codec)


def _check_rows(rows: Sequence[DocumentMasks]) -> None:
    for before, after in zip(rows, rows[1:], strict=False):
        if before.key == after.key:
            raise misused("pack", "one row a key", f"two for {after.key.hex()}", "drop one")
        if before.ca.shape_key[1:4] != after.ca.shape_key[1:4]:
            found = f"{before.ca.shape_key[1:4]} and {after.ca.shape_key[1:4]}"
            raise misused("pack", "one (layers, heads, page)", found, "do not mix builds")
