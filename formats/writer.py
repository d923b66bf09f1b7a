"""Appending: new receipts are merged into the previous key table, then published.

Order matters: packs and receipts exist already, the key table comes next, the manifest last. A
crash before the manifest leaves files nobody names; running again publishes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sift_index.formats.documentmap import DocumentMap, Documents
from sift_index.formats.draft import Draft, publish_draft
from sift_index.formats.errors import FingerprintMismatchError
from sift_index.formats.fileinfo import PackInfo
from sift_index.formats.fingerprint import Fingerprint, require_same_build
from sift_index.formats.keytable import KeyTable
from sift_index.formats.manifest import Manifest, open_keytable, require_writable
from sift_index.formats.meanwhile import conflict_when_replaced
from sift_index.formats.merge import Offer, collect_rows, merge_rows, table_columns
from sift_index.formats.receipts import Receipt
from sift_index.formats.removal import Removal, without
from sift_index.formats.store import IndexPaths

WRITER = "sift-index"


def publish(
    paths: IndexPaths,
    fingerprint: Fingerprint,
    receipts: Sequence[Receipt],
    documents: Documents | DocumentMap,
    *,
    previous: Manifest | None = None,
    removal: Removal | None = None,
    quality: Mapping[str, Any] | None = None,
    writer: str = WRITER,
    created: str | None = None,
) -> Manifest:
    """Publish the next version and return its manifest.

    `documents` maps document ids to ordered keys; ids of `previous` are kept, an id given again
    gets the new keys, and those of `removal` leave. Of two packs with one key the earlier wins.
    Receipts that a version had before add nothing but rows of deleted documents that `documents`
    names again. `quality` is written as given: whether the previous version's still holds is for
    the caller to know. Raises
    FingerprintMismatchError for another build, UsageError for a document with an unknown key,
    CommitConflictError when another writer was first, IntegrityError for a damaged pack, BuildError
    when a file cannot be written.
    """
    _check_build(fingerprint, receipts, previous)
    given = documents if isinstance(documents, DocumentMap) else DocumentMap.of(documents)
    with conflict_when_replaced(paths, previous):
        draft = _draft(paths, fingerprint, receipts, given, previous, removal, quality)
    return publish_draft(paths, draft, previous, writer=writer, created=created)


def _draft(
    paths: IndexPaths,
    fingerprint: Fingerprint,
    receipts: Sequence[Receipt],
    documents: DocumentMap,
    previous: Manifest | None,
    removal: Removal | None,
    quality: Mapping[str, Any] | None,
) -> Draft:
    table = open_keytable(paths, previous) if previous else None
    known = previous.packs if previous else ()
    units = previous.units if previous else ()
    before = frozenset(units)
    offers = _offers(receipts, before, table, documents)
    added = _added(offers, known)
    packs = (*known, *added)
    rows = merge_rows(collect_rows(paths, offers, packs, table))
    merged = documents.over(DocumentMap.of({}) if table is None else DocumentMap.of_table(table))
    tokens = previous.counts.tokens if previous else 0
    if removal is not None:
        rows, merged, gone = without(paths, previous, rows, merged, removal)
        tokens -= gone
    return Draft(
        fingerprint=fingerprint,
        packs=packs,
        columns=table_columns(rows, merged),
        tokens=tokens + int(rows.tokens.sum()),
        units=(*units, *(pack.unit for pack in added if pack.unit not in before)),
        quality=quality,
    )


def _check_build(
    fingerprint: Fingerprint, receipts: Sequence[Receipt], previous: Manifest | None
) -> None:
    if previous:
        require_writable(previous)
        require_same_build(previous.fingerprint, fingerprint)
    wanted = fingerprint.build_digest
    for receipt in receipts:
        if receipt.build_digest != wanted:
            raise FingerprintMismatchError(
                f"receipt {receipt.unit}: expected build {wanted}, found {receipt.build_digest};"
                " publish only receipts of this build (read_receipts takes the digest)"
            )


def _offers(
    receipts: Sequence[Receipt],
    units: frozenset[str],
    table: KeyTable | None,
    documents: DocumentMap,
) -> list[Offer]:
    """Return what the receipts add to a version with `units`: whole packs of new units.

    Units it has or had give back rows that a document now names; their other rows belong to
    documents that were deleted, and stay so. Packs without a row are left out.
    """
    new = {r.pack.name: Offer(r) for r in receipts if r.pack.rows and r.unit not in units}
    again = [receipt for receipt in receipts if receipt.unit in units]
    if table is not None and again:
        own = {bytes.fromhex(key) for r in receipts if r.unit not in units for key in r.keys}
        unknown = documents.keys[table.positions(documents.keys) < 0]
        wanted = frozenset(key.tobytes() for key in unknown) - own
        back = [r for r in again if not wanted.isdisjoint(map(bytes.fromhex, r.keys))]
        new |= {receipt.pack.name: Offer(receipt, wanted) for receipt in back}
    return [new[name] for name in sorted(new)]


def _added(offers: Sequence[Offer], known: Sequence[PackInfo]) -> list[PackInfo]:
    names = {pack.name for pack in known}
    return [offer.pack for offer in offers if offer.pack.name not in names]
