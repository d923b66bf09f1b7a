from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_index.formats.errors import FormatError, IntegrityError, UsageError
from sift_index.formats.fileinfo import FileInfo, sha256_hex
from sift_index.formats.keyorder import stack_keys
from sift_index.formats.keytable import KeyColumns, KeyTable, keytable_bytes
from tests.formats.files import cuts, flips, rewrite

# Keys that differ only in trailing zero bytes, or in a byte that is negative when signed.
HARD = sorted(
    [bytes(16), b"a" + bytes(15), b"a\0b" + bytes(13), b"a" * 15 + b"\0", b"a" * 16]
    + [b"\xff" * 16, b"\xff" * 8 + bytes(8), bytes(8) + b"\x80" + bytes(7), b"\x7f" * 16]
)


def _columns(keys: list[bytes], documents: dict[str, list[int]] | None = None) -> KeyColumns:
    n = len(keys)
    documents = {"d": list(range(n))} if documents is None else documents
    names = sorted(documents, key=str.encode)
    lengths = [len(documents[name]) for name in names]
    return KeyColumns(
        stack_keys(b"".join(keys)),
        np.arange(n, dtype=np.uint32) % 3,
        np.arange(n, dtype=np.uint32) * 7,
        np.arange(n, dtype=np.uint64),
        names,
        np.cumsum([0, *lengths]),
        np.array([place for name in names for place in documents[name]], np.uint32),
    )


def _store(path: Path, data: bytes) -> FileInfo:
    rewrite(path, data)
    return FileInfo(path.name, len(data), sha256_hex(data))


def _open(path: Path, columns: KeyColumns) -> KeyTable:
    return KeyTable.open(path, _store(path, keytable_bytes(columns)), 3)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys-00000001.arrow"


def test_keys_with_trailing_zero_bytes_are_ordinary(file: Path) -> None:
    table = _open(file, _columns(HARD))
    assert [table.find(key) for key in HARD] == [(i % 3, i * 7, i) for i in range(len(HARD))]
    assert [table.key(i) for i in range(len(HARD))] == HARD
    absent = [b"a\0\0" + b"b" + bytes(12), bytes(15) + b"\1", b"\xff" * 15 + b"\xfe", b"b" * 16]
    assert [table.find(key) for key in absent] == [None] * 4
    assert table.positions(stack_keys(b"".join([*absent, *HARD[::-1]]))).tolist() == [
        *[-1] * 4,
        *range(len(HARD) - 1, -1, -1),
    ]


@settings(deadline=None)
@given(
    keys=st.sets(st.binary(min_size=16, max_size=16), max_size=40),
    others=st.lists(st.binary(min_size=16, max_size=16), max_size=10),
    data=st.data(),
)
def test_the_table_answers_like_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, keys: set[bytes], others: list[bytes], data: Any
) -> None:
    ordered = sorted(keys)
    places = st.lists(st.integers(0, len(ordered) - 1), max_size=4) if ordered else st.just([])
    names = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    documents = data.draw(st.dictionaries(names, places, max_size=5))
    path = tmp_path_factory.mktemp("table") / "keys.arrow"
    table = _open(path, _columns(ordered, documents))
    expected = {key: (i % 3, i * 7, i) for i, key in enumerate(ordered)}
    assert all(table.find(key) == expected.get(key) for key in [*ordered, *others])
    wanted = {name: tuple(ordered[i] for i in found) for name, found in documents.items()}
    assert dict(table.documents()) == wanted
    assert list(table.document_ids()) == sorted(wanted, key=str.encode)
    start = data.draw(names)[:1]
    assert list(table.document_ids(start)) == [
        name for name in sorted(wanted, key=str.encode) if name.startswith(start)
    ]
    assert all(table.document(name) == found for name, found in wanted.items())
    assert table.document("never a name") == ()
    assert table.document("\ud800") == ()
    assert table.anchors().tolist() == list(range(len(ordered)))


def test_a_key_costs_thirty_two_bytes(file: Path) -> None:
    def size(n: int) -> int:
        keys = [i.to_bytes(16, "big") for i in range(n)]
        return len(keytable_bytes(_columns(keys, {})))

    assert (size(6400) - size(3200)) / 3200 == 32


def test_an_empty_table_finds_nothing(file: Path) -> None:
    table = _open(file, _columns([], {}))
    assert len(table) == table.document_count == 0
    assert table.find(bytes(16)) is None
    assert table.document("x") == ()
    assert table.positions(stack_keys(bytes(32))).tolist() == [-1, -1]


@pytest.mark.parametrize("key", [b"", b"a" * 15, b"a" * 17])
def test_a_key_of_another_size_is_refused(file: Path, key: bytes) -> None:
    with pytest.raises(UsageError, match="16 bytes"):
        _open(file, _columns(HARD)).find(key)


def test_every_changed_byte_and_every_cut_is_found_when_opening(file: Path) -> None:
    data = keytable_bytes(_columns(HARD[:2]))
    info = _store(file, data)
    for damaged in (*flips(data), *cuts(data)):
        rewrite(file, damaged)
        with pytest.raises(IntegrityError, match="keys-00000001.arrow"):
            KeyTable.open(file, info, 3)


def test_forged_bytes_with_a_right_hash_never_crash(file: Path) -> None:
    data = keytable_bytes(_columns(HARD[:3], {"a": [0, 1], "b": [2]}))
    refused = 0
    for place in range(len(data) * 8):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        try:
            table = KeyTable.open(file, _store(file, bytes(changed)), 3)
        except FormatError:
            refused += 1
            continue
        assert [table.find(table.key(i)) is not None for i in range(len(table))]
        assert len(list(table.documents())) == table.document_count
    assert refused > len(data) * 8 // 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keys": stack_keys(b"".join(HARD[1::-1]))}, "sorted keys"),
        ({"keys": stack_keys(HARD[0] * 2)}, "sorted keys"),
        ({"keys": stack_keys(HARD[0])}, "packs, rows and anchors"),
        ({"pack": np.zeros(1, np.uint32)}, "packs, rows and anchors"),
        ({"row": np.zeros(3, np.uint32)}, "packs, rows and anchors"),
        ({"anchor": np.zeros(0, np.uint64)}, "packs, rows and anchors"),
        ({"pack": np.array([0, 3], np.uint32)}, "packs below 3"),
        ({"doc_ids": ["b", "a"]}, "sorted, distinct"),
        ({"doc_ids": ["a", "a"]}, "sorted, distinct"),
        ({"doc_ids": ["a"]}, "document offsets"),
        ({"doc_offsets": np.array([0, 1, 1])}, "document offsets"),
        ({"doc_offsets": np.array([1, 1, 2])}, "document offsets"),
        ({"doc_offsets": np.array([0, 3, 2])}, "falling"),
        ({"doc_offsets": np.array([0, -1, 2])}, "falling"),
        ({"doc_offsets": np.zeros(0, np.int64)}, "document offsets"),
        ({"doc_keys": np.array([0, 2], np.uint32)}, "document keys below 2"),
    ],
)
def test_a_forged_structure_is_refused(file: Path, changes: dict[str, Any], message: str) -> None:
    good = _columns(HARD[:2], {"a": [0], "b": [1]})
    assert _open(file, good).document("b") == (HARD[1],)
    with pytest.raises(IntegrityError, match=message):
        _open(file, replace(good, **changes))


def test_a_list_that_hides_values_is_refused(file: Path) -> None:
    batch = pa.ipc.open_file(keytable_bytes(_columns(HARD[:2]))).get_batch(0)
    keys = batch.column(0)
    offsets = pa.array([0, 1], pa.int64())
    part = pa.LargeListArray.from_arrays(offsets, keys.values).cast(keys.type)
    batch = pa.record_batch([part, *batch.columns[1:]], schema=batch.schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(IntegrityError):
        KeyTable.open(file, _store(file, bytes(sink.getvalue())), 3)
