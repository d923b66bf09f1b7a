"""Arrow IPC files as untrusted input: one batch, the expected schema, every buffer in bounds.

Arrow reads what a file claims. Here the claims are checked before any value is used, and each
exception of pyarrow becomes an IntegrityError that names the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from sift_index.formats.alignment import aligned
from sift_index.formats.errors import FeatureError
from sift_index.formats.filepieces import FilePieces
from sift_index.formats.flatbuffers import (
    BATCH_COMPRESSION,
    BLOCK,
    FOOTER_BATCHES,
    MESSAGE_HEADER,
    TAIL,
    footer_table,
    root,
    slot,
    target,
    vector,
)
from sift_index.formats.problems import RESTORE, damaged
from sift_index.formats.schema import FORMAT_VERSION, META_FORMAT, META_KIND

_CONTINUATION = b"\xff\xff\xff\xff"  # before the length of a message; old files have none
_ARROW_ERRORS = (
    pa.ArrowException,
    OSError,
    ValueError,
    TypeError,
    KeyError,
    OverflowError,
    MemoryError,
    EOFError,
    IndexError,
    struct.error,
)


def ipc_bytes(batch: pa.RecordBatch) -> bytes:
    """Return one batch as an Arrow IPC file: not compressed, 64-byte aligned, deterministic."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=None)
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return aligned(memoryview(sink.getvalue()))


def read_batch(data: pa.Buffer, schema: pa.Schema, where: object) -> pa.RecordBatch:
    """Return the only batch of a mapped file as views into it, fully validated.

    `schema` gives the fields and the metadata that must match (kind and format version always).
    Raises IntegrityError, or FeatureError for a newer format version.
    """
    with arrow_errors(where):
        reader = pa.ipc.open_file(data)
        _check_reader(reader, schema, where)
        start, _ = _first_block(memoryview(data))
        # Reading the message verifies its FlatBuffer, and its body stays where it is.
        _check_not_compressed(pa.ipc.read_message(data.slice(start)).metadata, where)
        batch = reader.get_batch(0)
        batch.validate(full=True)
        _check_columns(batch, data, where)
    return batch


def read_columns(
    file: FilePieces, schema: pa.Schema, names: Sequence[str], where: object
) -> pa.RecordBatch:
    """Return some columns of the only batch of a file, without reading what others hold.

    Checked as by `read_batch`, except for the columns that are not read. The result is a copy.
    Raises as `read_batch` does, and what reading `file` raises.
    """
    places = [schema.get_field_index(name) for name in names]
    # Numbers of another byte order must not pass for ours because they were swapped.
    whole = pa.ipc.IpcReadOptions(ensure_native_endian=False)
    some = pa.ipc.IpcReadOptions(ensure_native_endian=False, included_fields=places)
    with arrow_errors(where):
        _check_reader(pa.ipc.open_file(pa.PythonFile(file, "r"), options=whole), schema, where)
        _check_not_compressed(_message(file), where)
        batch = pa.ipc.open_file(pa.PythonFile(file, "r"), options=some).get_batch(0)
        batch.validate(full=True)
        _check_nulls(batch, where)
    return batch


@contextmanager
def arrow_errors(
    where: object, expected: str = "a valid Arrow IPC file", advice: str = RESTORE
) -> Iterator[None]:
    """Turn whatever pyarrow raises on damaged input into an IntegrityError naming the file."""
    try:
        yield
    except _ARROW_ERRORS as error:
        found = f"{type(error).__name__}: {error}"
        raise damaged(where, expected, f"{found:.200}", advice) from error


def _check_metadata(found: dict[bytes, bytes], expected: dict[bytes, bytes], where: object) -> None:
    if found.get(META_KIND) != expected[META_KIND]:
        raise damaged(where, f"kind {expected[META_KIND]!r}", found.get(META_KIND))
    version = found.get(META_FORMAT, b"")
    if version != str(FORMAT_VERSION).encode():
        raise FeatureError(
            f"{where}: expected format version {FORMAT_VERSION}, found {version!r};"
            " upgrade sift-index to read this file"
        )
    for name, value in expected.items():
        if found.get(name) != value:
            raise damaged(where, f"{name!r} = {value!r}", found.get(name))


def _check_reader(reader: pa.ipc.RecordBatchFileReader, schema: pa.Schema, where: object) -> None:
    _check_metadata(reader.schema.metadata or {}, schema.metadata, where)
    if not reader.schema.equals(schema):
        raise damaged(where, f"the columns {schema.names}", reader.schema.names)
    if reader.num_record_batches != 1:
        raise damaged(where, "one record batch", reader.num_record_batches)


def _first_block(tail: Any) -> tuple[int, int]:
    """Return where the first batch's message starts, and its bytes, by a file's last bytes."""
    start, size, _ = BLOCK.unpack_from(tail, vector(tail, footer_table(tail), FOOTER_BATCHES))
    return int(start), int(size)


def _message(file: FilePieces) -> memoryview:
    """Return the metadata of the first batch: a FlatBuffer, not verified yet."""
    footer_bytes = int(TAIL.unpack(file.piece(file.size - TAIL.size, TAIL.size))[0])
    tail_bytes = footer_bytes + TAIL.size
    start, size = _first_block(file.piece(file.size - tail_bytes, tail_bytes))
    message = memoryview(file.piece(start, size))
    return message[8 if message[:4] == _CONTINUATION else 4 :]


def _check_not_compressed(message: Any, where: object) -> None:
    """Raise before pyarrow unpacks what may be a decompression bomb."""
    batch = target(message, root(message, 0), MESSAGE_HEADER)
    if slot(message, batch, BATCH_COMPRESSION):
        raise damaged(where, "buffers that are not compressed", "a compressed record batch")


def _check_nulls(batch: pa.RecordBatch, where: object) -> None:
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            raise damaged(where, f"no nulls in {field.name}", column.null_count)


def _check_columns(batch: pa.RecordBatch, data: pa.Buffer, where: object) -> None:
    _check_nulls(batch, where)
    for field, column in zip(batch.schema, batch.columns, strict=True):
        for buffer in column.buffers():
            # A buffer elsewhere is a copy that processes cannot share (other byte order).
            if buffer is not None and not _inside(buffer, data):
                raise damaged(where, f"{field.name} inside the mapped file", "a copy")


def _inside(buffer: pa.Buffer, data: pa.Buffer) -> bool:
    if not buffer.size:
        return True
    start: int = buffer.address - data.address
    return 0 <= start and start + int(buffer.size) <= int(data.size)


def buffer_view(buffer: pa.Buffer | None, code: str, count: int) -> memoryview:
    """Return `count` items of a buffer as a memoryview with struct `code`, in native order."""
    view: Any = memoryview(buffer if buffer is not None else b"")
    items: memoryview = view[: count * _SIZES[code]].cast(code)
    return items


_SIZES = {"B": 1, "I": 4, "q": 8}
