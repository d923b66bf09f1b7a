"""Moves the buffers of an Arrow IPC file to 64-byte boundaries, a cache line each.

Arrow recommends it, and pyarrow writes 8 without a setting for more. Only numbers of the file's
own metadata change (FlatBuffers scalars, patched where they stand), so any Arrow reader reads it.
"""

from __future__ import annotations

import struct

from sift_index.formats.flatbuffers import (
    BATCH_BUFFERS,
    BLOCK,
    FOOTER_BATCHES,
    MESSAGE_BODY,
    MESSAGE_HEADER,
    field,
    footer_table,
    root,
    target,
    u32,
    vector,
)

ALIGNMENT = 64
_BUFFER = struct.Struct("<qq")  # offset in the body, bytes


def aligned(data: bytes | memoryview) -> bytes:
    """Return the file (of one record batch, not compressed) with its buffers moved apart.

    The body is copied once into what is patched and once into what is returned.
    """
    file = bytearray(data)
    block = vector(file, footer_table(file), FOOTER_BATCHES)
    offset, head_bytes, body_bytes = BLOCK.unpack_from(file, block)
    start = offset + head_bytes
    gap = -start % ALIGNMENT
    parts, size = _move_buffers(file, offset + 8, start)
    struct.pack_into("<i", file, offset + 4, head_bytes - 8 + gap)
    BLOCK.pack_into(file, block, offset, head_bytes + gap, size)
    whole = memoryview(file)
    return b"".join([whole[:start], bytes(gap), *parts, whole[start + body_bytes :]])


def _move_buffers(
    file: bytearray, message: int, start: int
) -> tuple[list[memoryview | bytes], int]:
    """Return the parts of the spread body and its length, patched into the message."""
    table = root(file, message)
    buffers = vector(file, target(file, table, MESSAGE_HEADER), BATCH_BUFFERS)
    parts: list[memoryview | bytes] = []
    length = 0
    for i in range(u32(file, buffers - 4)):
        place = buffers + _BUFFER.size * i
        offset, size = _BUFFER.unpack_from(file, place)
        _BUFFER.pack_into(file, place, length, size)
        pad = -size % ALIGNMENT
        parts += [memoryview(file)[start + offset : start + offset + size], bytes(pad)]
        length += size + pad
    if length:  # an empty body has no length field to patch
        struct.pack_into("<q", file, field(file, table, MESSAGE_BODY), length)
    return parts, length
