"""Deleting documents: a new key table without them. No pack is touched, so nothing is rewritten.

Rows that the table no longer names are dead: no reader finds them, `compact` leaves them behind,
and versions from before the deletion still have them until `gc` removes those.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sift_index.formats.draft import Draft, publish_draft
from sift_index.formats.errors import FormatError, UsageError
from sift_index.formats.keytable import KeyColumns, KeyTable
from sift_index.formats.manifest import (
    Manifest,
    open_keytable,
    read_manifest,
    require_writable,
    versions,
)
from sift_index.formats.meanwhile import conflict_when_replaced
from sift_index.formats.problems import misused
from sift_index.formats.removal import tokens_of
from sift_index.formats.store import IndexPaths

WRITER = "sift-index delete"
SHOWN = 5


@dataclass(frozen=True)
class Deletion:
    """What a deletion did: the version it made, documents and keys it hid.

    `shared` counts keys of the deleted documents that stay, because another document has them;
    `missing` the ids that were passed over, because the index does not have them.
    """

    manifest: Manifest
    documents: int
    keys: int
    shared: int
    missing: int


def delete_documents(
    paths: IndexPaths, doc_ids: Iterable[str], *, ignore_missing: bool = False
) -> Deletion | None:
    """Publish a version without these documents; None when there is nothing to delete.

    A key goes when no remaining document has it. A later build of a corpus that holds such a
    document adds it again. Raises UsageError naming ids the index does not have (unless
    `ignore_missing`), CommitConflictError when another writer published first; then nothing
    changed and the same call may be tried again.
    """
    current = read_manifest(paths)
    require_writable(current)
    with conflict_when_replaced(paths, current):
        return _publish_without(paths, current, set(doc_ids), ignore_missing)


def _publish_without(
    paths: IndexPaths, current: Manifest, wanted: set[str], ignore_missing: bool
) -> Deletion | None:
    table = open_keytable(paths, current)
    columns = table.columns()
    missing = sorted(wanted - set(columns.doc_ids))
    if missing and not ignore_missing:
        raise _unknown(paths, current, missing)
    gone = np.array([name in wanted for name in columns.doc_ids], bool)
    if not gone.any():
        return None
    left, hidden, shared = _without(columns, gone)
    draft = Draft(
        fingerprint=current.fingerprint,
        packs=current.packs,
        columns=left,
        tokens=current.counts.tokens - _tokens(paths, current, table, hidden),
        units=current.units,
        quality=current.quality,
    )
    manifest = publish_draft(paths, draft, current, writer=WRITER)
    return Deletion(manifest, int(gone.sum()), len(hidden), shared, len(missing))


def _without(
    columns: KeyColumns, gone: NDArray[np.bool_]
) -> tuple[KeyColumns, NDArray[np.int64], int]:
    """Return the table without the documents `gone` [d], places of keys that went, keys shared."""
    lengths = np.diff(columns.doc_offsets)
    of_gone = np.repeat(gone, lengths)
    used = np.unique(columns.doc_keys[~of_gone])
    theirs = np.unique(columns.doc_keys[of_gone])
    hidden = np.setdiff1d(theirs, used, assume_unique=True).astype(np.int64)
    stays = np.ones(len(columns.keys), bool)
    stays[hidden] = False
    place = np.cumsum(stays) - 1  # where a key that stays lies in the new table
    left = replace(
        columns,
        keys=columns.keys[stays],
        pack=columns.pack[stays],
        row=columns.row[stays],
        anchor=columns.anchor[stays],
        doc_ids=[name for name, out in zip(columns.doc_ids, gone, strict=True) if not out],
        doc_offsets=np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths[~gone]))),
        doc_keys=place[columns.doc_keys[~of_gone]].astype(np.uint32),
    )
    return left, hidden, len(theirs) - len(hidden)


def _tokens(
    paths: IndexPaths, manifest: Manifest, table: KeyTable, places: NDArray[np.int64]
) -> int:
    """Return the tokens of keys by their places in the table."""
    pack, row = (values[places] for values in table.locations())
    return tokens_of(paths, manifest, pack, row)


def _unknown(paths: IndexPaths, current: Manifest, missing: Sequence[str]) -> UsageError:
    more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    found = ", ".join(map(repr, missing[:SHOWN])) + more
    had = _last_version_with(paths, current.version, missing[0])
    hint = f" ({missing[0]!r} was deleted after version {had})" if had else ""
    return misused(
        f"version {current.version} of {paths.root}",
        "ids of its documents",
        f"{found}{hint}",
        "see `sift-index inspect`, or skip such ids with --ignore-missing; nothing was deleted",
    )


def _last_version_with(paths: IndexPaths, below: int, doc_id: str) -> int | None:
    """Return the newest version before `below` that has a document, for an error message."""
    for version in reversed([number for number in versions(paths) if number < below]):
        try:
            if open_keytable(paths, read_manifest(paths, version)).document(doc_id):
                return version
        except FormatError:  # a message must not fail over a damaged old version
            continue
    return None
