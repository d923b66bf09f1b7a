"""One mask as bytes: a 32-byte header that belongs to its row, then the packed bits.

Arrow checks nothing, so each blob carries a checksum, and the checksum also covers the row's key,
anchor and token count: a blob moved to another row is found like a flipped bit. A CA blob covers
its row's LA checksum too, so that a lost LA blob is not mistaken for "stays dense".
"""

from __future__ import annotations

import struct
import threading
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from sift_index.formats.bits import Bytes, packed_bytes
from sift_index.formats.errors import IntegrityError
from sift_index.formats.masks import (
    MaskKind,
    PackedMask,
    row_entries,
    shape_problem,
)
from sift_index.formats.problems import damaged, misused

MAGIC = b"SB"
HEADER_BYTES = 32
ZSTD_LEVEL = 9
_HEADER = struct.Struct("<2sBBBBHHHIII")
CHECKED_BYTES = _HEADER.size  # 24: the header before the checksum
_CHECKSUM = struct.Struct("<Q")
_IDENTITY = struct.Struct("<16sQIQ")
_MAX_RAW = 2**32 - 1
_KINDS = {kind.value: kind for kind in MaskKind}
_local = threading.local()


class Codec(IntEnum):
    """How a payload is stored. RAW is decoded by the GPU as it lies in the file."""

    RAW = 0
    ZSTD = 1


class RowIdentity(NamedTuple):
    """The fields of a row that a blob is bound to; `linked` is the LA checksum for CA, else 0."""

    key: bytes
    anchor: int | None
    tokens: int
    linked: int = 0

    def to_bytes(self) -> bytes:
        """Return the 36 bytes that enter the checksum before the header."""
        return _IDENTITY.pack(self.key, self.anchor or 0, self.tokens, self.linked)


class Header(NamedTuple):
    """The fields of a blob header before the checksum, in file order."""

    magic: bytes
    kind: int
    codec: int
    levels: int
    reserved: int
    layers: int
    heads: int
    granule: int
    entries: int
    stored_bytes: int
    raw_bytes: int


class Layout(NamedTuple):
    """What a row's header says of its mask; `unpack` are bytes to unpack to, 0 for raw ones."""

    unpack: int
    shape: tuple[int, int, int]
    entries: int
    granule: int
    levels: int


def encode_blob(mask: PackedMask, identity: RowIdentity, codec: Codec = Codec.RAW) -> bytes:
    """Return header and payload of one mask.

    With ZSTD a payload that would not shrink is stored raw. Raises UsageError for non-zero
    padding bits or a mask of 4 GiB and more.
    """
    raw = mask.packed.tobytes()
    if len(raw) > _MAX_RAW or not mask.padding_is_zero():
        found = f"{len(raw)} bytes, padding zero: {mask.padding_is_zero()}"
        raise misused("mask", "under 4 GiB with zero padding bits", found, "use bits.pack")
    stored = _compress(raw) if codec == Codec.ZSTD else raw
    used = codec if len(stored) < len(raw) else Codec.RAW
    payload = stored if used == Codec.ZSTD else raw
    head = (MAGIC, mask.kind, used, mask.levels, 0, mask.layers, mask.heads, mask.granule)
    header = _HEADER.pack(*head, mask.entries, len(payload), len(raw))
    return header + _CHECKSUM.pack(_checksum(identity, header, payload)) + payload


def decode_blob(
    blob: Any, identity: RowIdentity, verify: bool = True, *, full: bool = False
) -> PackedMask:
    """Return the mask of a blob (any buffer); raw payloads are a read-only view, not a copy.

    Everything is checked before anything is allocated. `verify` checks the checksum, `full`
    also that padding bits are zero. Raises IntegrityError naming what is wrong.
    """
    view = memoryview(blob).cast("B")
    header = read_header(view)
    if verify:
        _verify(view, identity)
    data = view[HEADER_BYTES:]
    if header.codec:
        data = _decompress(data, header.raw_bytes)
    packed = np.frombuffer(data, np.uint8).reshape(header.layers, header.heads, -1)
    mask = PackedMask(_KINDS[header.kind], packed, header.entries, header.granule, header.levels)
    if full and not mask.padding_is_zero():
        raise damaged("blob", "zero bits after the last entry", "a set bit")
    return mask


def unpacked(payload: memoryview, raw_bytes: int) -> Bytes:
    """Return a zstd payload unpacked, uint8 [raw_bytes]; raise IntegrityError for another size."""
    return np.frombuffer(_decompress(payload, raw_bytes), np.uint8)


def read_header(view: memoryview) -> Header:
    """Return the header of a blob; raise IntegrityError unless every field is possible."""
    if len(view) < HEADER_BYTES:
        raise damaged("blob", f"at least {HEADER_BYTES} bytes", len(view))
    header = _parse(view[:CHECKED_BYTES].tobytes())
    if header.stored_bytes != len(view) - HEADER_BYTES:
        raise damaged("blob header", f"stored_bytes {len(view) - HEADER_BYTES}", header)
    return header


def blob_checksum(view: memoryview | bytes) -> int:
    """Return the checksum a blob claims, for the blob that is linked to it."""
    return int(_CHECKSUM.unpack_from(view, CHECKED_BYTES)[0])


@lru_cache(1024)  # documents of one length share a header: the checks are paid once
def _parse(head: bytes) -> Header:
    header = Header._make(_HEADER.unpack(head))
    problem = _header_problem(header)
    if problem:
        raise damaged("blob header", *problem)
    return header


@lru_cache(1024)
def mask_layout(head: bytes) -> Layout:
    """Return what the checked part of a header says of a mask."""
    header = _parse(head)
    width = header.raw_bytes // (header.layers * header.heads)
    unpack = header.raw_bytes if header.codec else 0
    shape = (header.layers, header.heads, width)
    return Layout(unpack, shape, header.entries, header.granule, header.levels)


def _header_problem(header: Header) -> tuple[object, object] | None:
    _, kind, codec, levels, _, layers, heads, granule, entries, stored, raw = header
    if header.magic != MAGIC or header.reserved:
        return "magic 'SB' and reserved 0", (header.magic, header.reserved)
    if codec not in (0, 1):
        return "codec 0 (raw) or 1 (zstd)", codec
    shape = shape_problem(kind, layers, heads, granule, entries, levels)
    if shape:
        return shape
    expected = layers * heads * packed_bytes(row_entries(kind, entries), levels)
    if raw != expected:
        return f"raw_bytes {expected} for the shape", raw
    if codec == Codec.RAW and stored != raw:
        return f"stored_bytes {raw}", stored
    return None


def _verify(view: memoryview, identity: RowIdentity) -> None:
    found = _checksum(identity, view[:CHECKED_BYTES], view[HEADER_BYTES:])
    if found != blob_checksum(view):
        expected = f"checksum {blob_checksum(view):016x} over row and blob"
        raise damaged("blob", expected, f"{found:016x}: blob or row was changed")


def _checksum(identity: RowIdentity, header: Any, payload: Any) -> int:
    digest = blake2b(identity.to_bytes(), digest_size=8)
    digest.update(header)
    digest.update(payload)
    return int.from_bytes(digest.digest(), "little")


def _compress(raw: bytes) -> bytes:
    zstandard = _zstandard()
    # The frame's own checksum is left out: ours covers the stored bytes and the row as well.
    return bytes(zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=False).compress(raw))


def _decompress(payload: memoryview, raw_bytes: int) -> memoryview:
    zstandard = _zstandard()
    if not hasattr(_local, "decompressor"):  # one per thread: it is not safe to share
        _local.decompressor = zstandard.ZstdDecompressor()
    try:
        size = zstandard.frame_content_size(payload)
        if size != raw_bytes:
            raise damaged("zstd frame", f"content of {raw_bytes} bytes", size)
        decompress = _local.decompressor.decompress
        return memoryview(decompress(payload, max_output_size=raw_bytes, allow_extra_data=False))
    except zstandard.ZstdError as error:
        raise damaged("zstd frame", "one whole frame", error) from error


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise IntegrityError(
            "blob: expected the package zstandard for codec zstd, found none; pip install zstandard"
        ) from error
    return zstandard
