"""The key table of an imported index, gathered from rows in any number of pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sift_index.formats.exchange import ADVICE
from sift_index.formats.keyorder import as_items, stack_keys
from sift_index.formats.keytable import KeyColumns
from sift_index.formats.problems import damaged

_BY_DOCUMENT = [("id", "ascending"), ("piece", "ascending")]


class KeyColumnsBuilder:
    """Collects rows; about 60 bytes a key and the document ids are held until the end."""

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._numbers: dict[str, list[NDArray[np.uint64]]] = {"pack": [], "row": [], "anchor": []}
        self._entries: list[pa.Table] = []
        self._count = 0

    def add(self, rows: pa.Table) -> None:
        """Take rows of an export; those that are not current are passed over.

        Raises IntegrityError for another number of ids than of pieces.
        """
        rows = rows.filter(rows["current"]).combine_chunks()
        self._keys.append(b"".join(rows["key"].to_pylist()))
        for name, parts in self._numbers.items():
            parts.append(rows[name].to_numpy().astype(np.uint64))
        self._entries.append(_entries(rows, self._count))
        self._count += len(rows)

    def finish(self, empty: Sequence[str]) -> KeyColumns:
        """Return the content of the key table; `empty` are documents without a key."""
        keys = stack_keys(b"".join(self._keys))
        order = np.argsort(as_items(keys), kind="stable")
        rank = np.empty(len(order), np.uint32)
        rank[order] = np.arange(len(order), dtype=np.uint32)
        pack, row, anchor = (_joined(parts)[order] for parts in self._numbers.values())
        ids, offsets, owners = _document_map(self._entries, empty)
        return KeyColumns(
            keys[order],
            pack.astype(np.uint32),
            row.astype(np.uint32),
            anchor,
            ids,
            offsets,
            rank[owners],
        )


def _entries(rows: pa.Table, first: int) -> pa.Table:
    """Return (id, piece, owner), one row an entry of the document map; owners count from first."""
    ids, pieces = rows["document_ids"], rows["document_pieces"]
    if not pc.list_value_length(ids).equals(pc.list_value_length(pieces)):
        raise damaged("document_pieces", "one number an id", "another number of them", ADVICE)
    owner = pc.add(pc.list_parent_indices(ids), pa.scalar(first, pa.int64()))
    columns = [pc.list_flatten(ids).cast(pa.large_string()), pc.list_flatten(pieces), owner]
    return pa.table(columns, names=["id", "piece", "owner"])


def _document_map(
    entries: Sequence[pa.Table], empty: Sequence[str]
) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """Return (ids sorted, offsets, owner of each entry) as `KeyColumns` orders them."""
    lengths = dict.fromkeys(empty, 0)
    owners = np.zeros(0, np.int64)
    if entries:
        table = pa.concat_tables(entries)
        table = table.take(pc.sort_indices(table, sort_keys=_BY_DOCUMENT))
        owners = table["owner"].to_numpy()
        runs = pc.run_end_encode(table["id"].combine_chunks()) if len(table) else None
        if runs is not None:
            ends = np.diff(np.asarray(runs.run_ends), prepend=0).tolist()
            lengths.update(zip(runs.values.to_pylist(), ends, strict=True))
    ids = sorted(lengths, key=str.encode)
    offsets = np.cumsum([0, *(lengths[name] for name in ids)], dtype=np.int64)
    return ids, offsets, owners


def _joined(parts: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    return np.concatenate((np.zeros(0, np.uint64), *parts))
