"""The key table: one sorted table per version, because a table per pack is 1,000 times slower.

All processes map the same file. Keys are compared as bytes, so keys that end in zero bytes are
ordinary; an entry costs 32 bytes: key 16, pack 4, row 4, anchor 8.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sift_index.formats.arrowfile import arrow_errors, buffer_view, ipc_bytes, read_batch
from sift_index.formats.fileinfo import FileInfo, sha256_hex
from sift_index.formats.keyorder import KEY_DTYPE, Keys, find_positions, rising
from sift_index.formats.location import Location
from sift_index.formats.problems import damaged, misused
from sift_index.formats.schema import KEYTABLE_FIELDS, keytable_schema
from sift_index.formats.store import map_file

_ITEM = np.dtype(KEY_DTYPE)  # made once: by name it would be looked up for every key
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class KeyColumns:
    """The content of a key table as arrays.

    `keys` uint8 [n, 16] strictly rising; `pack` and `row` uint32 [n]; `anchor` uint64 [n], 0 for
    none; `doc_ids` distinct and sorted by their UTF-8 bytes; document d has the keys
    `doc_keys[doc_offsets[d]:doc_offsets[d + 1]]` (uint32 places in `keys`, int64 offsets).
    """

    keys: Keys
    pack: U32
    row: U32
    anchor: U64
    doc_ids: Sequence[str] | pa.LargeStringArray
    doc_offsets: NDArray[np.int64]
    doc_keys: U32


def keytable_bytes(columns: KeyColumns) -> bytes:
    """Return the file content of a key table; same columns, same bytes."""
    flat = [
        pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(16), len(columns.keys), [None, pa.py_buffer(columns.keys.tobytes())]
        ),
        pa.array(columns.pack, pa.uint32()),
        pa.array(columns.row, pa.uint32()),
        pa.array(columns.anchor, pa.uint64()),
        pa.array(columns.doc_ids, pa.large_utf8()),
        pa.array(columns.doc_offsets, pa.int64()),
        pa.array(columns.doc_keys, pa.uint32()),
    ]
    lists = [_one_list(field, values) for field, values in zip(KEYTABLE_FIELDS, flat, strict=True)]
    return ipc_bytes(pa.record_batch(lists, schema=keytable_schema()))


class KeyTable:
    """An open key table: key to (pack, row), document id to keys, anchors."""

    def __init__(self, path: Location, batch: pa.RecordBatch) -> None:
        """Wrap a validated batch; use `KeyTable.open`."""
        self.path = path
        flat = {f.name: _flat(batch.column(i), path) for i, f in enumerate(KEYTABLE_FIELDS)}
        keys, ids = flat["keys"], flat["doc_ids"]
        self._bytes = buffer_view(keys.buffers()[1], "B", 16 * len(keys))
        self._keys = np.frombuffer(self._bytes, KEY_DTYPE, count=len(keys))
        self._pack, self._row = _items(flat["pack"]), _items(flat["row"])
        self._anchors: U64 = np.asarray(flat["anchor"])
        self._ids = _Texts(ids)
        self._doc_offsets, self._doc_keys = _items(flat["doc_offsets"]), _items(flat["doc_keys"])

    @classmethod
    def open(cls, path: Location, info: FileInfo, packs: int | None = None) -> KeyTable:
        """Map a key table and check its SHA-256, order, offsets and indices.

        `packs` is the length of the manifest's pack list, when known. Raises IntegrityError.
        """
        data = map_file(path, info.bytes, info.sha256)
        found = sha256_hex(data)
        if found != info.sha256:
            raise damaged(path, f"sha256 {info.sha256}", found)
        batch = read_batch(data, keytable_schema(), path)
        if batch.num_rows != 1:
            raise damaged(path, "one row", batch.num_rows)
        with arrow_errors(path):
            table = cls(path, batch)
            problem = _problem(table, packs)
        if problem:
            raise damaged(path, *problem)
        return table

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, key: bytes) -> tuple[int, int, int] | None:
        """Return (pack, row, position) of a 16-byte key, or None; one binary search."""
        if len(key) != 16:
            raise misused("key", "16 bytes", len(key), "use identity.document_key")
        place: int = self._keys.searchsorted(np.frombuffer(key, _ITEM)).item()
        start = 16 * place
        if self._bytes[start : start + 16] != key:
            return None
        return self._pack[place], self._row[place], place

    def positions(self, keys: Keys) -> NDArray[np.int64]:
        """Return the places of many keys, uint8 [m, 16] to int64 [m]; -1 where unknown."""
        return find_positions(self.keys(), keys)

    def key(self, position: int) -> bytes:
        """Return the key at a place of the table."""
        return self._bytes[16 * position : 16 * position + 16].tobytes()

    def keys(self) -> Keys:
        """Return all keys in order, uint8 [n, 16], a view of the file."""
        return np.frombuffer(self._bytes, np.uint8).reshape(len(self), 16)

    def locations(self) -> tuple[U32, U32]:
        """Return (pack, row) of all keys, uint32 [n] each, views of the file."""
        return np.frombuffer(self._pack, np.uint32), np.frombuffer(self._row, np.uint32)

    def anchors(self) -> U64:
        """Return the anchors in key order, uint64 [n]; 0 where a document has none."""
        return self._anchors

    def document(self, doc_id: str) -> tuple[bytes, ...]:
        """Return the ordered keys of a document id; () when the id is unknown."""
        name = doc_id.encode("utf-8", "surrogatepass")
        place = bisect_left(self._ids, name)
        if place == len(self._ids) or self._ids[place] != name:
            return ()
        return self._document(place)

    def columns(self) -> KeyColumns:
        """Return the whole content; ids become Python text, arrays are views of the file."""
        pack, row = self.locations()
        offsets, places = self.document_places()
        ids = [*self.document_ids()]
        return KeyColumns(self.keys(), pack, row, self.anchors(), ids, offsets, places)

    def document_places(self) -> tuple[NDArray[np.int64], U32]:
        """Return (doc_offsets, doc_keys) as `KeyColumns` has them, views of the file."""
        offsets = np.frombuffer(self._doc_offsets, np.int64)
        return offsets, np.frombuffer(self._doc_keys, np.uint32)

    def id_column(self) -> pa.LargeStringArray:
        """Return the document ids, sorted by their UTF-8 bytes, a view of the file."""
        return self._ids.column

    @property
    def document_count(self) -> int:
        """Number of document ids."""
        return len(self._ids)

    def documents(self) -> Iterator[tuple[str, tuple[bytes, ...]]]:
        """Yield (document id, ordered keys), sorted by the id's UTF-8 bytes."""
        for place in range(len(self._ids)):
            yield self._ids[place].decode(), self._document(place)

    def document_ids(self, prefix: str = "") -> Iterator[str]:
        """Yield the document ids that start with `prefix`, sorted by their UTF-8 bytes."""
        start = prefix.encode("utf-8", "surrogatepass")
        places = range(bisect_left(self._ids, start), len(self._ids))
        found = takewhile(lambda name: name.startswith(start), map(self._ids.__getitem__, places))
        return (name.decode() for name in found)

    def _document(self, place: int) -> tuple[bytes, ...]:
        start, end = self._doc_offsets[place], self._doc_offsets[place + 1]
        return tuple(self.key(position) for position in self._doc_keys[start:end])


class _Texts:
    """A large_utf8 column as a sequence of bytes for bisect: UTF-8 sorts like code points."""

    def __init__(self, column: pa.Array) -> None:
        _, offsets, data = column.buffers()
        self.column, self._count = column, len(column)
        self._offsets = buffer_view(offsets, "q", self._count + 1 if self._count else 0)
        self._data = buffer_view(data, "B", data.size if data is not None else 0)

    def __len__(self) -> int:
        return self._count

    def rising(self) -> bool:
        before, after = self.column[:-1], self.column[1:]
        return not self._count or bool(pc.all(pc.less(before, after), min_count=0).as_py())

    def __getitem__(self, i: int) -> bytes:
        return self._data[self._offsets[i] : self._offsets[i + 1]].tobytes()


def _one_list(field: pa.Field, values: pa.Array) -> pa.Array:
    offsets = pa.array([0, len(values)], pa.int64())
    return pa.LargeListArray.from_arrays(offsets, values).cast(field.type)


def _flat(column: pa.Array, path: Location) -> pa.Array:
    values = column.values
    bounds = buffer_view(column.buffers()[1], "q", 2)
    if list(bounds) != [0, len(values)] or values.null_count:
        raise damaged(path, "one list without nulls over the whole column", list(bounds))
    return values


def _items(values: pa.Array) -> memoryview:
    return np.asarray(values).data


def _problem(table: KeyTable, packs: int | None) -> tuple[Any, Any] | None:
    n, pack, row = len(table), *table.locations()
    if not (len(pack) == len(row) == len(table.anchors()) == n):
        return f"{n} packs, rows and anchors", (len(pack), len(row), len(table.anchors()))
    if not rising(table.keys()):
        return "sorted keys without duplicates", "another order"
    if packs is not None and n and int(pack.max()) >= packs:
        return f"packs below {packs}", int(pack.max())
    return _document_problem(table)


def _document_problem(table: KeyTable) -> tuple[Any, Any] | None:
    offsets, places = table.document_places()
    ends = (len(offsets), *offsets[:1].tolist(), *offsets[-1:].tolist())
    if ends != (table.document_count + 1, 0, len(places)):
        expected = f"{table.document_count + 1} document offsets from 0 to {len(places)}"
        return expected, f"{ends[0]} from and to {ends[1:]}"
    if (np.diff(offsets) < 0).any():
        return "document offsets that do not fall", "a falling one"
    if len(places) and int(places.max()) >= len(table):
        return f"document keys below {len(table)}", int(places.max())
    if not table._ids.rising():
        return "sorted, distinct document ids", "another order"
    return None
