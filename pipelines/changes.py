"""A corpus beside the version that an index has: which documents are new, changed or gone."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sift_index.formats.documentmap import DocumentMap
from sift_index.formats.keytable import KeyTable
from sift_index.pipelines.catalogue import Catalogue, Mask
from sift_index.pipelines.resume import Held
from sift_index.pipelines.segments import same_keys


@dataclass(frozen=True, eq=False)
class CorpusChanges:
    """Documents of a corpus against those of a version.

    known: bool [d], documents whose id the version has. same: bool [d], those whose keys it has
    under this id. absent: ids of the version that the corpus does not have, sorted.
    """

    known: Mask
    same: Mask
    absent: pa.LargeStringArray

    @property
    def new(self) -> int:
        """Number of documents whose id the version does not have."""
        return int((~self.known).sum())

    @property
    def changed(self) -> int:
        """Number of documents whose text is another one now."""
        return int((self.known & ~self.same).sum())

    @property
    def unchanged(self) -> int:
        """Number of documents that the version has as they are."""
        return int(self.same.sum())


def corpus_changes(catalogue: Catalogue, held: Held) -> CorpusChanges:
    """Compare the documents of a corpus that can be indexed with those of the current version."""
    if held.reader is None:
        none = np.zeros(len(catalogue), bool)
        return CorpusChanges(none, none, pa.array([], pa.large_string()))
    table = held.reader.keys
    place = _places(catalogue.ids, table)
    known = place >= 0
    same = known.copy()
    same[known] = _same(catalogue, known, DocumentMap.of_table(table).take(place[known]))
    absent = np.ones(table.document_count, bool)
    absent[place[known]] = False
    return CorpusChanges(known, same, table.id_column().filter(pa.array(absent)))


def document_map(catalogue: Catalogue) -> DocumentMap:
    """Return ids and keys of a corpus's documents as the format takes them."""
    return DocumentMap(catalogue.ids, catalogue.offsets, catalogue.keys)


def _places(ids: pa.LargeStringArray, table: KeyTable) -> NDArray[np.int64]:
    found = pc.index_in(ids, value_set=table.id_column())
    return np.asarray(pc.fill_null(found, -1)).astype(np.int64)


def _same(catalogue: Catalogue, known: Mask, theirs: DocumentMap) -> Mask:
    mine = document_map(catalogue).where(known)
    return same_keys(mine.keys, mine.offsets, theirs.keys, theirs.offsets)
