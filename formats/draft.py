"""A version before it has a number: what every writer hands over to be made visible.

Appending, deleting and compacting differ in how they come to a key table. How it appears is the
same for all: key table first, manifest last, each only if its name is free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sift_index.formats.fileinfo import FileInfo, PackInfo, sha256_hex
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.keytable import KeyColumns, keytable_bytes
from sift_index.formats.manifest import Counts, Manifest, publish_manifest, utc_now
from sift_index.formats.problems import damaged
from sift_index.formats.store import IndexPaths, freshen, read_file, write_if_absent


@dataclass(frozen=True, eq=False)
class Draft:
    """What the next version holds; `columns` point into `packs`, `tokens` counts their rows."""

    fingerprint: Fingerprint
    packs: tuple[PackInfo, ...]
    columns: KeyColumns
    tokens: int
    units: tuple[str, ...]
    quality: Mapping[str, Any] | None


def publish_draft(
    paths: IndexPaths,
    draft: Draft,
    previous: Manifest | None,
    *,
    writer: str,
    created: str | None = None,
) -> Manifest:
    """Publish the version after `previous` (None: the first) and return its manifest.

    Raises CommitConflictError when another writer did, BuildError when a file cannot be written.
    """
    version = previous.version + 1 if previous else 1
    columns = draft.columns
    manifest = Manifest(
        version=version,
        created=created or utc_now(),
        writer=writer,
        fingerprint=draft.fingerprint,
        packs=draft.packs,
        key_table=_write_keytable(paths, version, keytable_bytes(columns)),
        counts=Counts(len(columns.doc_ids), len(columns.keys), draft.tokens),
        units=draft.units,
        quality=draft.quality,
    )
    publish_manifest(paths, manifest)
    return manifest


def _write_keytable(paths: IndexPaths, version: int, data: bytes) -> FileInfo:
    """Write under the version's name, or beside it when an unfinished attempt left that name.

    The leftover may belong to a writer that is about to publish, so it is never replaced; the
    manifest names the file, hence readers do not care.
    """
    digest = sha256_hex(data)
    path = paths.keytable_path(version)
    if not write_if_absent(path, data) and (read_file(path, 1 << 62) != data or not freshen(path)):
        path = path.with_name(f"{path.stem}-{digest[:16]}.arrow")
        if not write_if_absent(path, data) and read_file(path, 1 << 62) != data:
            raise damaged(path, "the bytes its name says", "others", "remove this file")
    return FileInfo(path.name, len(data), digest)
