"""Document ids and their keys as arrays: millions of them need no object each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sift_index.formats.keyorder import Keys, stack_keys
from sift_index.formats.keytable import KeyTable
from sift_index.formats.problems import misused

Documents = Mapping[str, Sequence[bytes]]


@dataclass(frozen=True, eq=False)
class DocumentMap:
    """Distinct document ids with their ordered keys.

    Document i of `ids` (large_string [d]) has the keys `keys[offsets[i]:offsets[i + 1]]`: `offsets`
    int64 [d + 1], `keys` uint8 [n, 16].
    """

    ids: pa.LargeStringArray
    offsets: NDArray[np.int64]
    keys: Keys

    @classmethod
    def of(cls, documents: Documents) -> DocumentMap:
        """Return a mapping as arrays; raise UsageError for an id or a key that is none."""
        ids = pa.array([_valid(name) for name in documents], pa.large_string())
        flat = [key for keys in documents.values() for key in keys]
        wrong = next((key for key in flat if len(key) != 16), None)
        if wrong is not None:
            raise misused("document key", "16 bytes", len(wrong), "use identity.document_key")
        lengths = np.array([len(keys) for keys in documents.values()], np.int64)
        return cls(ids, _offsets(lengths), stack_keys(b"".join(flat)))

    @classmethod
    def of_table(cls, table: KeyTable) -> DocumentMap:
        """Return the documents of a key table."""
        offsets, places = table.document_places()
        return cls(table.id_column(), offsets, table.keys()[places])

    def __len__(self) -> int:
        return len(self.ids)

    def where(self, chosen: NDArray[np.bool_]) -> DocumentMap:
        """Return the documents that are chosen, bool [d]."""
        return self if chosen.all() else self.take(np.flatnonzero(chosen))

    def take(self, order: NDArray[np.int64]) -> DocumentMap:
        """Return documents by their numbers, in that order."""
        lengths = np.diff(self.offsets)[order]
        offsets = _offsets(lengths)
        rows = np.repeat(self.offsets[order] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return DocumentMap(self.ids.take(pa.array(order)), offsets, self.keys[rows])

    def without(self, ids: pa.LargeStringArray) -> DocumentMap:
        """Return the documents whose id is not among `ids`."""
        if not len(ids):
            return self
        return self.where(~np.asarray(pc.is_in(self.ids, value_set=ids)))

    def over(self, earlier: DocumentMap) -> DocumentMap:
        """Return all documents of both, sorted by id; where both have one, mine."""
        kept = earlier.without(self.ids)
        joined = DocumentMap(
            pa.concat_arrays([kept.ids, self.ids]),
            np.concatenate((kept.offsets, self.offsets[1:] + kept.offsets[-1])),
            np.concatenate((kept.keys, self.keys)),
        )
        return joined.take(np.asarray(pc.sort_indices(joined.ids)).astype(np.int64))


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))


def _valid(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise misused("document id", "valid text", ascii(name), "clean the id") from error
    return name
