"""Publishing a build: the next version of the index, and the records of what failed."""

from collections.abc import Callable, Sequence

from sift_index.formats.failures import (
    FailedDocument,
    clear_failure,
    read_failures,
    record_failure,
)
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.manifest import Manifest
from sift_index.formats.receipts import Receipt
from sift_index.formats.store import IndexPaths
from sift_index.formats.writer import publish
from sift_index.pipelines.corpus import CorpusReader
from sift_index.pipelines.planner import Catalogue
from sift_index.pipelines.resume import Held
from sift_index.selection.quality import Quality

SHARED = "it shares text with another document, which could not be indexed"


def publish_build(
    paths: IndexPaths,
    fingerprint: Fingerprint,
    held: Held,
    receipts: Sequence[Receipt],
    catalogue: Catalogue,
    quality: Quality | None = None,
) -> Manifest | None:
    """Publish a version if it adds a key, a document id or a measurement; return it, or None.

    `receipts` are all committed units that no version holds yet. `quality` is what was measured on
    this model and policy; without it, what the previous version says holds on: it is one build.
    """
    keys = {bytes.fromhex(key) for receipt in receipts for key in receipt.keys}
    documents = {
        name: document.keys
        for name, document in catalogue.documents.items()
        if all(key in keys or held.published(key) for key in document.keys)
    }
    known = (lambda name: ()) if held.reader is None else held.reader.document_keys
    earlier = held.manifest.quality if held.manifest else None
    # A measurement alone makes a version of an index, never an index.
    measured = held.manifest is not None and quality not in (None, earlier)
    same = all(known(name) == pieces for name, pieces in documents.items())
    if not keys and same and not measured:
        return None
    quality = earlier if quality is None else quality
    return publish(paths, fingerprint, receipts, documents, previous=held.manifest, quality=quality)


def failed_documents(
    reader: CorpusReader,
    catalogue: Catalogue,
    failed: Sequence[FailedDocument],
    published: Callable[[bytes], bool],
) -> list[FailedDocument]:
    """Return every document that could not be indexed, once, with the reason.

    `failed` are the workers' failures: one a piece, and silent about other documents with the
    same text. `published` says whether the index holds a key now.
    """
    reasons = {failure.source: failure.reason for failure in reversed(failed)}
    found = list(catalogue.failed)
    for document in catalogue.clashes:
        reason = f"document id {document.id!r} occurs again with another text; make ids unique"
        found.append(FailedDocument(reader.source(document.location), reason))
    for document in catalogue.documents.values():
        if not all(published(key) for key in document.keys):
            source = reader.source(document.location)
            found.append(FailedDocument(source, reasons.get(source, SHARED)))
    return found


def record_failures(
    paths: IndexPaths, reader: CorpusReader, failed: Sequence[FailedDocument]
) -> None:
    """Write one record per failed document and forget those of documents that are fine now.

    Records of documents that are not in this corpus stay: another corpus may have left them.
    """
    for failure in failed:
        record_failure(paths, failure)
    earlier = {record.source for record in read_failures(paths)}
    if cured := earlier - {failure.source for failure in failed}:
        present = {reader.source(location) for location in reader.locations()}
        for source in cured & present:
            clear_failure(paths, source)
