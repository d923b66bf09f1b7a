"""Moves the buffers of an Arrow IPC file to 64-byte boundaries, a cache line each.

Arrow recommends it, and pyarrow writes 8 without a setting for more. Only numbers of the file's
own metadata change (FlatBuffers scalars, patched where they stand), so any Arrow reader reads it.
"""

from __future__ import annotations

import struct

ALIGNMENT = 64
_TAIL = struct.Struct("<i6s")  # length of the footer, closing magic
_BLOCK = struct.Struct("<qi4xq")  # offset, metadata bytes, body bytes
_BUFFER = struct.Struct("<qq")  # offset in the body, bytes
# Places of the fields used, counted as in Arrow's File.fbs and Message.fbs.
_FOOTER_BATCHES, _MESSAGE_HEADER, _MESSAGE_BODY, _BATCH_BUFFERS = 3, 2, 3, 2


def aligned(data: bytes) -> bytes:
    """Return the file (of one record batch, not compressed) with its buffers moved apart."""
    file = bytearray(data)
    footer = len(file) - _TAIL.size - _TAIL.unpack_from(file, len(file) - _TAIL.size)[0]
    block = _vector(file, _root(file, footer), _FOOTER_BATCHES)
    offset, head_bytes, body_bytes = _BLOCK.unpack_from(file, block)
    start = offset + head_bytes
    gap = -start % ALIGNMENT
    body = _move_buffers(file, offset + 8, memoryview(data)[start : start + body_bytes])
    struct.pack_into("<i", file, offset + 4, head_bytes - 8 + gap)
    _BLOCK.pack_into(file, block, offset, head_bytes + gap, len(body))
    return bytes(file[:start]) + bytes(gap) + body + bytes(file[start + body_bytes :])


def _move_buffers(file: bytearray, message: int, body: memoryview) -> bytes:
    """Return the spread body; its offsets and length are patched into the message."""
    table = _root(file, message)
    vector = _vector(file, _target(file, table, _MESSAGE_HEADER), _BATCH_BUFFERS)
    moved = bytearray()
    for i in range(_u32(file, vector - 4)):
        place = vector + _BUFFER.size * i
        offset, size = _BUFFER.unpack_from(file, place)
        _BUFFER.pack_into(file, place, len(moved), size)
        moved += body[offset : offset + size]
        moved += bytes(-len(moved) % ALIGNMENT)
    if moved:  # an empty body has no length field to patch
        struct.pack_into("<q", file, _field(file, table, _MESSAGE_BODY), len(moved))
    return bytes(moved)


def _root(file: bytearray, start: int) -> int:
    return start + _u32(file, start)


def _field(file: bytearray, table: int, number: int) -> int:
    vtable = table - int(struct.unpack_from("<i", file, table)[0])
    return table + int(struct.unpack_from("<H", file, vtable + 4 + 2 * number)[0])


def _target(file: bytearray, table: int, number: int) -> int:
    place = _field(file, table, number)
    return place + _u32(file, place)


def _vector(file: bytearray, table: int, number: int) -> int:
    return _target(file, table, number) + 4


def _u32(file: bytearray, place: int) -> int:
    return int(struct.unpack_from("<I", file, place)[0])
