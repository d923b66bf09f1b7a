"""Publishing a build: the next version of the index, and the records of what failed."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import PurePosixPath

import numpy as np

from sift_index.formats.documentmap import DocumentMap
from sift_index.formats.failures import (
    FailedDocument,
    clear_failure,
    read_failures,
)
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.keyorder import find_positions, sorted_keys
from sift_index.formats.manifest import Manifest
from sift_index.formats.receipts import Receipt, receipt_keys
from sift_index.formats.removal import Removal
from sift_index.formats.store import IndexPaths
from sift_index.formats.writer import publish
from sift_index.pipelines.catalogue import Catalogue
from sift_index.pipelines.changes import corpus_changes, document_map
from sift_index.pipelines.corpus import CorpusReader
from sift_index.pipelines.corpus.files import printable
from sift_index.pipelines.failures import record_all
from sift_index.pipelines.resume import Held
from sift_index.selection.quality import Quality

# What readers put behind a file to name a place in it.
_PLACE = re.compile(r"(:| row | byte )[0-9]+\Z")
SHARED = "it shares text with another document, which could not be indexed"


def publish_build(
    paths: IndexPaths,
    fingerprint: Fingerprint,
    held: Held,
    receipts: Sequence[Receipt],
    catalogue: Catalogue,
    quality: Quality | None = None,
    removal: Removal | None = None,
) -> Manifest | None:
    """Publish a version if it differs in a key, a document id or a measurement, or return None.

    `receipts` are all committed units that no version holds yet. `quality` is what was measured on
    this model and policy; without it, what the previous version says holds on: it is one build.
    """
    keys = sorted_keys(receipt_keys(receipts))
    wanted = catalogue.distinct_keys
    complete = catalogue.complete(held.published(wanted) | (find_positions(keys, wanted) >= 0))
    earlier = held.manifest.quality if held.manifest else None
    # A measurement alone makes a version of an index, never an index.
    measured = held.manifest is not None and quality not in (None, earlier)
    same = bool(corpus_changes(catalogue, held).same[complete].all())
    if not len(keys) and same and not measured and not _removes(removal, held):
        return None
    return publish(
        paths,
        fingerprint,
        receipts,
        document_map(catalogue).where(complete),
        previous=held.manifest,
        removal=removal,
        quality=earlier if quality is None else quality,
    )


def _removes(removal: Removal | None, held: Held) -> bool:
    """Say whether a removal takes anything from the current version as it is."""
    if removal is None or held.reader is None:
        return False
    documents = DocumentMap.of_table(held.reader.keys)
    left = documents.without(removal.ids)
    goes = removal.takes(held.reader.keys.keys(), left)
    return len(left) < len(documents) or bool(goes.any())


def scan_failures(reader: CorpusReader, catalogue: Catalogue) -> list[FailedDocument]:
    """Return the documents that cannot be indexed for what they are, known before any work."""
    found = list(catalogue.failed)
    for clash in catalogue.clashes:
        reason = f"document id {clash.id!r} occurs again with another text; make ids unique"
        found.append(FailedDocument(reader.source(clash.location), reason))
    return found


def failed_documents(
    reader: CorpusReader, catalogue: Catalogue, failed: Sequence[FailedDocument], after: Held
) -> list[FailedDocument]:
    """Return every document that could not be indexed, once, with the reason.

    `failed` are the workers' failures: one a piece, and silent about other documents with the
    same text. `after` is what the index holds now.
    """
    reasons = {failure.source: failure.reason for failure in reversed(failed)}
    found = scan_failures(reader, catalogue)
    complete = catalogue.complete(after.published(catalogue.distinct_keys))
    for source in map(reader.source, catalogue.places.at(np.flatnonzero(~complete))):
        found.append(FailedDocument(source, reasons.get(source, SHARED)))
    return found


def record_failures(
    paths: IndexPaths, reader: CorpusReader, failed: Sequence[FailedDocument], prune: bool = False
) -> None:
    """Write one record per failed document and forget those of documents that are fine now.

    Records of documents that are not in this corpus stay, for another corpus may have left them;
    with `prune` they go as documents do.
    """
    record_all(paths, failed)
    earlier = {record.source for record in read_failures(paths)}
    fine = earlier - {failure.source for failure in failed}
    for source in fine if prune else _present(reader, fine):
        clear_failure(paths, source)


def _present(reader: CorpusReader, sources: set[str]) -> Iterator[str]:
    """Yield those of some sources that are in the corpus, listed no further than needed.

    Of a file that is there now, all places are: it may have lost lines, or could not be listed at
    all. The same holds for a folder. Places of a data set are named by it alone.
    """
    left = set(sources)
    of_name: dict[str, set[str]] = {}
    for source in left:
        for name in {source, _PLACE.sub("", source)}:
            of_name.setdefault(name, set()).add(source)
    locations = reader.locations() if left else iter(())
    for file, places in groupby(locations, key=lambda location: location.file):
        named = _named(of_name, printable(file)) if file else map(reader.source, places)
        found = left.intersection(named)
        yield from found
        left -= found
        if not left:
            return


def _named(of_name: dict[str, set[str]], file: str) -> set[str]:
    """Return the sources that are a file, a place in it, or a folder above it."""
    names = (file, *map(str, PurePosixPath(file).parents))
    return set().union(*(of_name.get(name, set()) for name in names))
