"""Pruning: what the corpus no longer has leaves the index, unless the corpus may only look smaller.

A file that cannot be read, or a folder that cannot be entered, hides documents; nothing is removed
on the word of a corpus that was not seen whole.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sift_index.errors import CorpusError
from sift_index.formats.keyorder import Keys, find_positions
from sift_index.formats.removal import Removal
from sift_index.pipelines.catalogue import Catalogue
from sift_index.pipelines.changes import CorpusChanges, corpus_changes
from sift_index.pipelines.resume import Held

ADVICE = "or run without --prune and remove documents by id with `sift-index delete`"


def removal_for(catalogue: Catalogue, held: Held, alone: bool = True) -> Removal | None:
    """Return what leaves the index with the corpus as it is; None when nothing does.

    Documents go whose id the corpus does not have, or only with an empty or a skipped text; texts
    go that neither the corpus nor a remaining document has, those of an interrupted build that no
    version has yet included. Unless it is `alone`: a text that no document has may be what another
    build has committed and not published yet, so only texts that documents of the version have can
    go, the others with a later prune. Raises CorpusError for a corpus that was not read as a whole
    or has no document to index.
    """
    require_prunable(catalogue)
    ids = absent_ids(catalogue, corpus_changes(catalogue, held))
    keys = held.keys if alone else _named_keys(held)
    removal = Removal(ids, keys[find_positions(catalogue.distinct_keys, keys) < 0])
    return removal if len(removal.ids) or len(removal.keys) else None


def _named_keys(held: Held) -> Keys:
    """Return the keys of the current version that a document of it has; rising, uint8 [n, 16]."""
    if held.reader is None:
        return np.zeros((0, 16), np.uint8)
    table = held.reader.keys
    named = np.zeros(len(table), bool)
    named[table.document_places()[1]] = True
    keys: Keys = table.keys()[named]
    return keys


def absent_ids(catalogue: Catalogue, changes: CorpusChanges) -> pa.LargeStringArray:
    """Return ids of the version that the corpus no longer has; failed documents are still there."""
    if not catalogue.kept_ids or not len(changes.absent):
        return changes.absent
    kept = pa.array(sorted(catalogue.kept_ids), pa.large_string())
    return changes.absent.filter(pc.invert(pc.is_in(changes.absent, value_set=kept)))


def require_prunable(catalogue: Catalogue) -> None:
    """Raise CorpusError when documents may be there that the scan did not see."""
    if catalogue.unread:
        first = catalogue.failed[0]
        raise CorpusError(
            f"--prune: expected a corpus that can be read as a whole, found {catalogue.unread} "
            f"places that cannot, such as {first.source} ({first.reason}); they may hide documents "
            f"that the index has: repair or remove them, {ADVICE}. Nothing was changed"
        )
    if not len(catalogue):
        raise CorpusError(
            f"--prune: expected documents to index, found none among {catalogue.read}; check the "
            f"path, {ADVICE}. Nothing was changed"
        )


def pruned(removal: Removal | None, before: Held, after: Held) -> tuple[int, int]:
    """Return how many documents and keys of a version that were to leave are gone now."""
    if removal is None or before.reader is None or after.reader is None:
        return 0, 0
    stay = pc.is_in(removal.ids, value_set=after.reader.keys.id_column())
    gone = before.published(removal.keys) & ~after.published(removal.keys)
    return len(removal.ids) - int(np.asarray(stay).sum()), int(gone.sum())
