"""Joining what an index has with what a build added: sorted arrays, no loop over keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sift_index.formats.documentmap import DocumentMap
from sift_index.formats.fileinfo import PackInfo
from sift_index.formats.keyorder import Keys, as_items, find_positions, stack_keys
from sift_index.formats.keytable import KeyColumns, KeyTable
from sift_index.formats.packhead import PackHead, read_pack_head
from sift_index.formats.parallel import ask_all
from sift_index.formats.problems import damaged, misused
from sift_index.formats.receipts import Receipt
from sift_index.formats.store import IndexPaths


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of all packs, newest last: keys uint8 [n, 16], pack, row uint32, anchor uint64 [n]."""

    keys: Keys
    pack: NDArray[np.uint32]
    row: NDArray[np.uint32]
    anchor: NDArray[np.uint64]
    tokens: NDArray[np.int64]


@dataclass(frozen=True)
class Offer:
    """A unit to take rows from: all of them, or those with one of the keys in `only`."""

    receipt: Receipt
    only: frozenset[bytes] | None = None

    @property
    def pack(self) -> PackInfo:
        """The unit's pack."""
        return self.receipt.pack


def collect_rows(
    paths: IndexPaths,
    offers: Sequence[Offer],
    packs: Sequence[PackInfo],
    table: KeyTable | None,
) -> list[Rows]:
    """Return the rows of the previous table and of what is offered, numbered as in `packs`.

    Masks are not read. Raises IntegrityError for a pack whose other columns are damaged, or are
    not what its receipt says.
    """
    number = {pack.name: place for place, pack in enumerate(packs)}

    def rows_of(offer: Offer) -> Rows:
        rows = _from_pack(_offered(paths, offer.receipt), number[offer.pack.name])
        return rows if offer.only is None else _only(rows, offer.only)

    return [*([] if table is None else [_from_table(table)]), *ask_all(rows_of, offers)]


def _offered(paths: IndexPaths, receipt: Receipt) -> PackHead:
    """Read keys, anchors and tokens; keys and tokens are compared, since no hash is taken."""
    path = paths.pack_path(receipt.pack.name)
    head = read_pack_head(path, receipt.pack, receipt.build_digest)
    if head.keys.tobytes().hex() != "".join(sorted(receipt.keys)):
        raise damaged(path, f"the keys of {receipt.unit}.json", "others")
    if (found := int(head.tokens.sum(dtype=np.uint64))) != receipt.tokens:
        raise damaged(path, f"the {receipt.tokens} tokens of {receipt.unit}.json", found)
    return head


def _from_table(table: KeyTable) -> Rows:
    pack, row = table.locations()
    # Their tokens are in the previous version's total already.
    return Rows(table.keys(), pack, row, table.anchors(), np.zeros(len(table), np.int64))


def _from_pack(pack: PackHead, number: int) -> Rows:
    n = len(pack.keys)
    place = np.full(n, number, np.uint32)
    rows = np.arange(n, dtype=np.uint32)
    return Rows(pack.keys, place, rows, pack.anchors, pack.tokens.astype(np.int64))


def _only(rows: Rows, keys: frozenset[bytes]) -> Rows:
    chosen = np.array([key.tobytes() in keys for key in rows.keys], bool)
    columns = (rows.keys, rows.pack, rows.row, rows.anchor, rows.tokens)
    return Rows(*(column[chosen] for column in columns))


def merge_rows(parts: Sequence[Rows]) -> Rows:
    """Sort by key and keep the earliest row of each: a stable sort leaves it first."""
    if not parts:
        empty = np.zeros(0, np.uint32)
        return Rows(stack_keys(b""), empty, empty, np.zeros(0, np.uint64), np.zeros(0, np.int64))
    keys = np.concatenate([part.keys for part in parts])
    order = np.argsort(as_items(keys), kind="stable")
    keys = keys[order]
    first = np.ones(len(keys), bool)
    first[1:] = (keys[1:] != keys[:-1]).any(axis=1)
    chosen = order[first]
    return Rows(
        keys[first],
        np.concatenate([part.pack for part in parts])[chosen],
        np.concatenate([part.row for part in parts])[chosen],
        np.concatenate([part.anchor for part in parts])[chosen],
        np.concatenate([part.tokens for part in parts])[chosen],
    )


def table_columns(rows: Rows, documents: DocumentMap) -> KeyColumns:
    """Return the content of the new key table; `documents` are sorted by id.

    Raises UsageError naming the first document with a key that no pack holds.
    """
    places = find_positions(rows.keys, documents.keys)
    if (places < 0).any():
        lost = int(np.argmax(places < 0))
        owner = int(np.searchsorted(documents.offsets, lost, "right")) - 1
        raise misused(
            f"document {documents.ids[owner].as_py()!r}",
            "keys that a pack holds",
            documents.keys[lost].tobytes().hex(),
            "leave out documents that failed, or pass the receipt of their unit",
        )
    doc_keys = places.astype(np.uint32)
    ids, offsets = documents.ids, documents.offsets
    return KeyColumns(rows.keys, rows.pack, rows.row, rows.anchor, ids, offsets, doc_keys)
