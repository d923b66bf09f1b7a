"""Publishing a version: new receipts are merged into the previous key table, then made visible.

Order matters: packs and receipts exist already, the key table comes next, the manifest last. A
crash before the manifest leaves files nobody names; running again publishes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sift_index.formats.errors import FingerprintMismatchError
from sift_index.formats.fileinfo import FileInfo, PackInfo, sha256_hex
from sift_index.formats.fingerprint import Fingerprint, require_same_build
from sift_index.formats.keytable import keytable_bytes
from sift_index.formats.manifest import (
    Counts,
    Manifest,
    open_keytable,
    publish_manifest,
    require_writable,
    utc_now,
)
from sift_index.formats.merge import (
    Documents,
    collect_rows,
    merge_documents,
    merge_rows,
    table_columns,
)
from sift_index.formats.problems import damaged
from sift_index.formats.receipts import Receipt
from sift_index.formats.store import IndexPaths, read_file, write_if_absent

WRITER = "sift-index"


def publish(
    paths: IndexPaths,
    fingerprint: Fingerprint,
    receipts: Sequence[Receipt],
    documents: Documents,
    *,
    previous: Manifest | None = None,
    quality: Mapping[str, Any] | None = None,
    writer: str = WRITER,
    created: str | None = None,
) -> Manifest:
    """Publish the next version and return its manifest.

    `documents` maps document ids to ordered keys; ids of `previous` are kept, an id given again
    gets the new keys. Of two packs with one key the earlier wins. `quality` is written
    as given: whether the previous version's still holds is for the caller to know. Raises
    FingerprintMismatchError for another build, UsageError for a document with an unknown key,
    CommitConflictError when the version exists, IntegrityError for a damaged pack, BuildError
    when a file cannot be written.
    """
    _check_build(fingerprint, receipts, previous)
    packs = _new_packs(receipts, previous)
    known = previous.packs if previous else ()
    table = open_keytable(paths, previous) if previous else None
    rows = merge_rows(collect_rows(paths, packs, table, len(known)))
    version = previous.version + 1 if previous else 1
    columns = table_columns(rows, merge_documents(table, documents))
    info = _write_keytable(paths, version, keytable_bytes(columns))
    tokens = int(rows.tokens.sum()) + (previous.counts.tokens if previous else 0)
    manifest = Manifest(
        version=version,
        created=created or utc_now(),
        writer=writer,
        fingerprint=fingerprint,
        packs=(*known, *packs),
        key_table=info,
        counts=Counts(len(columns.doc_ids), len(rows.keys), tokens),
        units=(*(previous.units if previous else ()), *(pack.unit for pack in packs)),
        quality=quality,
    )
    publish_manifest(paths, manifest)
    return manifest


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


def _new_packs(receipts: Sequence[Receipt], previous: Manifest | None) -> tuple[PackInfo, ...]:
    """Leave out packs that the previous version has, and those without a row."""
    known = {pack.name for pack in previous.packs} if previous else set()
    by_name = {r.pack.name: r.pack for r in receipts if r.pack.rows and r.pack.name not in known}
    return tuple(by_name[name] for name in sorted(by_name))


def _write_keytable(paths: IndexPaths, version: int, data: bytes) -> FileInfo:
    """Write under the version's name, or beside it when an unfinished attempt left that name.

    The leftover may belong to a writer that is about to publish, so it is never replaced; the
    manifest names the file, hence readers do not care.
    """
    digest = sha256_hex(data)
    path = paths.keytable_path(version)
    if not write_if_absent(path, data) and read_file(path, 1 << 62) != data:
        path = path.with_name(f"{path.stem}-{digest[:16]}.arrow")
        if not write_if_absent(path, data) and read_file(path, 1 << 62) != data:
            raise damaged(path, "the bytes its name says", "others", "remove this file")
    return FileInfo(path.name, len(data), digest)
