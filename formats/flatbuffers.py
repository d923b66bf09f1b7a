"""The few steps through FlatBuffers that Arrow's own metadata needs and pyarrow does not offer.

Offsets are followed as they stand: on files of others only after pyarrow has verified the buffer,
and with `struct.error` and `OverflowError` expected.
"""

from __future__ import annotations

import struct
from typing import Any

TAIL = struct.Struct("<i6s")  # length of the footer, closing magic of an Arrow IPC file
BLOCK = struct.Struct("<qi4xq")  # offset, metadata bytes, body bytes of one message
# Places of the fields used, counted as in Arrow's File.fbs and Message.fbs.
FOOTER_BATCHES, MESSAGE_HEADER, MESSAGE_BODY, BATCH_BUFFERS, BATCH_COMPRESSION = 3, 2, 3, 2, 3


def footer_table(file: Any) -> int:
    """Return where the footer's table starts in an Arrow IPC file."""
    return root(file, len(file) - TAIL.size - int(TAIL.unpack_from(file, len(file) - TAIL.size)[0]))


def root(file: Any, start: int) -> int:
    """Return where the root table of the FlatBuffer at `start` lies."""
    return start + u32(file, start)


def slot(file: Any, table: int, number: int) -> int:
    """Return a field's offset inside its table, 0 when the table does not have the field."""
    vtable = table - int(struct.unpack_from("<i", file, table)[0])
    if 4 + 2 * number >= int(struct.unpack_from("<H", file, vtable)[0]):
        return 0
    return int(struct.unpack_from("<H", file, vtable + 4 + 2 * number)[0])


def field(file: Any, table: int, number: int) -> int:
    """Return where a field that is there lies."""
    return table + slot(file, table, number)


def target(file: Any, table: int, number: int) -> int:
    """Return where the table or vector that a field points to starts."""
    place = field(file, table, number)
    return place + u32(file, place)


def vector(file: Any, table: int, number: int) -> int:
    """Return where the first item of a field's vector lies; its length stands 4 bytes before."""
    return target(file, table, number) + 4


def u32(file: Any, place: int) -> int:
    """Return the unsigned 32-bit number at `place`."""
    return int(struct.unpack_from("<I", file, place)[0])
