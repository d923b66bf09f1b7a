"""The narrow columns of a pack, read without its masks: what a key table is made of.

Masks are nearly all of a pack, and whoever publishes a version needs none of them. Of a pack in an
object store two ranges are asked for, whatever its size, and no copy is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sift_index.formats.arrowfile import arrow_errors, buffer_view, read_columns
from sift_index.formats.fileinfo import PackInfo
from sift_index.formats.filepieces import FilePieces
from sift_index.formats.keyorder import Keys, rising
from sift_index.formats.location import Location
from sift_index.formats.problems import damaged
from sift_index.formats.schema import pack_schema
from sift_index.formats.store import file_pieces

_COLUMNS = ("key", "anchor", "tokens")
_ROW_BYTES = 16 + 8 + 4 + 1  # the columns of a row, its null bit rounded up
_START_BYTES, _END_BYTES = 1536, 1024  # schema, message and padding; footer


@dataclass(frozen=True, eq=False)
class PackHead:
    """Keys uint8 [n, 16], anchors uint64 [n] (0 for none) and tokens uint32 [n], row by row."""

    keys: Keys
    anchors: NDArray[np.uint64]
    tokens: NDArray[np.uint32]


def read_pack_head(path: Location, info: PackInfo, build_digest: str) -> PackHead:
    """Return the narrow columns of a pack of a build.

    Checks size, schema, build, row count and the columns that it returns. What only masks have
    (their offsets and checksums) is left to who opens the pack, and the SHA-256 to who verifies it
    in full, as in a folder: hashing takes the whole file. Raises IntegrityError naming the file,
    FeatureError for a newer format, StorageError when a store does not answer.
    """
    schema = pack_schema(info.unit, build_digest)
    with file_pieces(path, info.bytes) as read, arrow_errors(path):
        head = _START_BYTES + _ROW_BYTES * info.rows
        batch = read_columns(FilePieces(read, info.bytes, head, _END_BYTES), schema, _COLUMNS, path)
        if batch.num_rows != info.rows:
            raise damaged(path, f"{info.rows} rows", batch.num_rows)
        return _checked(batch, path)


def _checked(batch: pa.RecordBatch, path: Location) -> PackHead:
    n, (key, anchor, tokens) = batch.num_rows, batch.columns
    found = PackHead(
        np.frombuffer(buffer_view(key.buffers()[1], "B", 16 * n), np.uint8).reshape(n, 16),
        np.asarray(anchor.fill_null(0)).astype(np.uint64, copy=False),
        np.frombuffer(buffer_view(tokens.buffers()[1], "I", n), np.uint32),
    )
    if not rising(found.keys):
        raise damaged(path, "sorted keys without duplicates", "another order")
    if int((found.anchors == 0).sum()) != anchor.null_count:
        raise damaged(path, "anchors other than 0", "an anchor 0 that is not null")
    return found
