"""What a corpus holds, as arrays: about 100 bytes a document, whatever its length.

A corpus of ten million documents is planned in the memory of one process. Objects for a document or
a piece are made when somebody asks for one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sift_index.formats.failures import FailedDocument
from sift_index.formats.keyorder import Keys, as_items
from sift_index.pipelines.corpus import Location
from sift_index.pipelines.pieces import PieceColumns
from sift_index.pipelines.segments import all_of_each, owners

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Places:
    """Where documents lie: `files[file[i]]` at `position[i]`; file int32 and position int64 [d].

    `files` are bytes, because a file system accepts names that are no UTF-8.
    """

    files: pa.LargeBinaryArray
    file: NDArray[np.int32]
    position: NDArray[np.int64]

    def at(self, documents: Rows) -> list[Location]:
        """Return the places of documents by their numbers."""
        names, which = self.names(documents)
        places = zip(which.tolist(), self.position[documents].tolist(), strict=True)
        return [Location(names[name], position) for name, position in places]

    def names(self, documents: Rows) -> tuple[tuple[str, ...], Rows]:
        """Return the files of documents, each once, and which of them a document's is."""
        numbers, which = np.unique(self.file[documents], return_inverse=True)
        found = self.files.take(pa.array(numbers)).to_pylist()
        return tuple(name.decode("utf-8", "surrogateescape") for name in found), which

    def take(self, documents: Rows) -> "Places":
        """Return the places of some documents."""
        return Places(self.files, self.file[documents], self.position[documents])


@dataclass(frozen=True)
class Clash:
    """A document under the id of an earlier one with another text."""

    id: str
    location: Location


@dataclass(frozen=True, eq=False)
class Catalogue:
    """Documents by id with their pieces, one row a key, and what was left out.

    `ids` [d] are distinct, in corpus order; document i has the pieces
    `offsets[i]:offsets[i + 1]` (int64) with `keys` uint8 [p, 16] and `tokens` uint32 [p]. `read`
    counts places of the corpus, `skipped` those left out on purpose by reason, `repeats` documents
    that came twice under one id. `clashes` came under an earlier id with another text. The first
    `unread` of `failed` may hide any document id; `kept_ids` failed under a known id.
    """

    ids: pa.LargeStringArray
    offsets: NDArray[np.int64]
    keys: Keys
    tokens: NDArray[np.uint32]
    places: Places
    read: int
    skipped: dict[str, int]
    failed: tuple[FailedDocument, ...]
    clashes: tuple[Clash, ...]
    repeats: int
    unread: int
    kept_ids: frozenset[str]

    def __len__(self) -> int:
        """Return the number of documents that can be indexed, each id once."""
        return len(self.ids)

    @property
    def split(self) -> int:
        """Number of documents of more than one piece."""
        return int((np.diff(self.offsets) > 1).sum())

    @cached_property
    def distinct(self) -> "Distinct":
        """The distinct keys."""
        return _distinct(self.keys, self.offsets)

    @cached_property
    def distinct_keys(self) -> Keys:
        """Distinct keys in rising order, uint8 [k, 16]."""
        return self.keys[self.distinct.rows]

    def complete(self, have: Mask) -> Mask:
        """Return which documents [d] have all of their keys, from which keys [k] there are."""
        return all_of_each(have[self.distinct.number], self.offsets)

    def document_keys(self, document: int) -> tuple[bytes, ...]:
        """Return the ordered keys of a document."""
        start, end = self.offsets[document : document + 2]
        return tuple(key.tobytes() for key in self.keys[start:end])

    def pieces(self, rows: Rows) -> PieceColumns:
        """Return the pieces at rows of `keys`."""
        documents = self._documents_of(rows)
        files, file = self.places.names(documents)
        return PieceColumns(
            keys=self.keys[rows],
            tokens=self.tokens[rows],
            files=files,
            file=file,
            position=self.places.position[documents],
            number=rows - self.offsets[documents],
        )

    def _documents_of(self, rows: Rows) -> Rows:
        """Return which documents have the pieces at rows of `keys`."""
        if len(self.keys) == len(self.ids):
            return rows  # none is split
        return self.offsets.searchsorted(rows, "right") - 1


@dataclass(frozen=True, eq=False)
class Distinct:
    """Distinct keys in rising order.

    rows: int64 [k], the row where a key stands first. number: int64 [p], the place in `rows` of
    each row's key. duplicates: bool [d], documents whose text is that of earlier ones.
    """

    rows: Rows
    number: Rows
    duplicates: Mask

    def __len__(self) -> int:
        return len(self.rows)


def _distinct(keys: Keys, offsets: NDArray[np.int64]) -> Distinct:
    order = np.argsort(as_items(keys), kind="stable")  # stable: the first row of a key comes first
    ranked = keys[order]
    new = np.ones(len(order), bool)
    np.not_equal(as_items(ranked)[1:], as_items(ranked)[:-1], out=new[1:])
    del ranked  # here and below: columns of ten million rows that nobody needs any more
    rows = order[new]
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(new) - 1
    del order
    document = owners(offsets)
    earlier = document[rows][number] < document
    del document
    return Distinct(rows, number, all_of_each(earlier, offsets))


def text_column(data: NDArray[np.uint8], lengths: Sequence[int] | NDArray[np.int32]) -> pa.Array:
    """Return joined texts as a binary column; cast it for text."""
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
