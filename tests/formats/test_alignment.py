from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_index.formats.alignment import ALIGNMENT, aligned
from sift_index.formats.arrowfile import ipc_bytes

BLOBS = st.lists(st.none() | st.binary(max_size=90), max_size=9)


def _batch(blobs: list[bytes | None], name: str) -> Any:
    numbers = pa.array(range(len(blobs)), pa.uint32())
    columns = {name: numbers, "blob": pa.array(blobs, pa.large_binary())}
    lists = pa.array([blobs] * len(blobs), pa.large_list(pa.large_binary()))
    return pa.record_batch({**columns, "lists": lists})


@settings(deadline=None)
@given(blobs=BLOBS, name=st.text("abc", max_size=40))
def test_every_buffer_lies_on_a_boundary_and_nothing_else_changes(
    blobs: list[bytes | None], name: str
) -> None:
    batch = _batch(blobs, f"x{name}")
    data = ipc_bytes(batch)
    file = pa.py_buffer(data)
    reader = pa.ipc.open_file(file)
    again = reader.get_batch(0)
    again.validate(full=True)
    assert reader.num_record_batches == 1
    assert again.equals(batch)
    for column in again.columns:
        for buffer in column.buffers():
            if buffer is not None and buffer.size:
                assert (buffer.address - file.address) % ALIGNMENT == 0
    assert aligned(data) == data


def test_arrow_alone_does_not_align() -> None:
    """When this fails, pyarrow has learned it and the module can go."""
    sink = pa.BufferOutputStream()
    batch = _batch([b"a", b"bc", None], "x")
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    plain = bytes(sink.getvalue())
    assert aligned(plain) != plain


@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_alignment_costs_at_most_a_line_a_buffer(rows: int) -> None:
    batch = _batch([b"x" * 10] * min(rows, 30), "x")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    buffers = sum(len(column.buffers()) for column in batch.columns)
    assert 0 <= len(ipc_bytes(batch)) - len(bytes(sink.getvalue())) <= ALIGNMENT * (buffers + 1)
