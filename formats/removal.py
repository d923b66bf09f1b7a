"""Documents that leave with a version that others enter: a corpus and its index in step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sift_index.formats.documentmap import DocumentMap
from sift_index.formats.keyorder import Keys, find_positions
from sift_index.formats.keytable import U32
from sift_index.formats.manifest import Manifest
from sift_index.formats.merge import Rows
from sift_index.formats.packhead import read_pack_head
from sift_index.formats.parallel import ask_all
from sift_index.formats.problems import damaged
from sift_index.formats.store import IndexPaths


@dataclass(frozen=True, eq=False)
class Removal:
    """`ids` of documents to leave out; `keys` [n, 16], rising, go where no document has them."""

    ids: pa.LargeStringArray
    keys: Keys

    def takes(self, keys: Keys, documents: DocumentMap) -> NDArray[np.bool_]:
        """Return which of rising `keys` go, bool [n], beside the documents that stay."""
        named = np.zeros(len(keys), bool)
        places = find_positions(keys, documents.keys)
        named[places[places >= 0]] = True
        gone: NDArray[np.bool_] = (find_positions(self.keys, keys) >= 0) & ~named
        return gone


def without(
    paths: IndexPaths,
    previous: Manifest | None,
    rows: Rows,
    documents: DocumentMap,
    removal: Removal,
) -> tuple[Rows, DocumentMap, int]:
    """Return the rows and documents that stay, and how many of the previous tokens went."""
    left = documents.without(removal.ids)
    gone = removal.takes(rows.keys, left)
    old = gone & (rows.tokens == 0)  # rows of the previous table: its total has their tokens
    tokens = tokens_of(paths, previous, rows.pack[old], rows.row[old]) if previous else 0
    return _chosen(rows, ~gone), left, tokens


def _chosen(rows: Rows, stays: NDArray[np.bool_]) -> Rows:
    return replace(
        rows,
        keys=rows.keys[stays],
        pack=rows.pack[stays],
        row=rows.row[stays],
        anchor=rows.anchor[stays],
        tokens=rows.tokens[stays],
    )


def tokens_of(paths: IndexPaths, manifest: Manifest, pack: U32, row: U32) -> int:
    """Return the tokens of some rows, uint32 [n] each; asks only the packs that hold them."""
    order = np.argsort(pack, kind="stable")
    numbers, starts = np.unique(pack[order], return_index=True)
    chosen = np.split(row[order], starts[1:])

    def tokens_in(number: int, rows: U32) -> int:
        info = manifest.packs[number]
        path, build = paths.pack_path(info.name), manifest.fingerprint.build_digest
        tokens = read_pack_head(path, info, build).tokens
        if int(rows.max()) >= len(tokens):
            raise damaged(paths.root, f"rows below {len(tokens)} for {path}", int(rows.max()))
        return int(tokens[rows].sum(dtype=np.int64))

    return sum(ask_all(lambda part: tokens_in(*part), zip(numbers, chosen, strict=False)))
