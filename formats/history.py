"""The versions of an index side by side: what a user looks at before going back, or before gc."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from sift_index.formats.errors import IndexNotFoundError
from sift_index.formats.manifest import Manifest, read_manifest, versions
from sift_index.formats.store import IndexPaths


@dataclass(frozen=True)
class VersionFacts:
    """One version. `dead_rows` lie in its packs and in no lookup: `compact` leaves them out.

    `bytes` are all its packs and its key table; `own_bytes` those that no other version has, which
    is what removing it alone would free.
    """

    version: int
    created: str
    writer: str
    documents: int
    keys: int
    tokens: int
    packs: int
    dead_rows: int
    bytes: int
    own_bytes: int


def history(paths: IndexPaths) -> list[VersionFacts]:
    """Return the facts of every version, oldest first.

    Raises IndexNotFoundError, IntegrityError for a damaged manifest.
    """
    manifests = _manifests(paths)
    uses = Counter(pack.name for manifest in manifests for pack in manifest.packs)
    return [_facts(manifest, uses) for manifest in manifests]


def _manifests(paths: IndexPaths) -> list[Manifest]:
    present = versions(paths) or [read_manifest(paths).version]  # says so when there is no index
    try:
        return [read_manifest(paths, version) for version in present]
    except IndexNotFoundError:
        return _manifests(paths)  # gc removed one since the look above


def _facts(manifest: Manifest, uses: Mapping[str, int]) -> VersionFacts:
    own = sum(pack.bytes for pack in manifest.packs if uses[pack.name] == 1)
    return VersionFacts(
        version=manifest.version,
        created=manifest.created,
        writer=manifest.writer,
        documents=manifest.counts.documents,
        keys=manifest.counts.keys,
        tokens=manifest.counts.tokens,
        packs=len(manifest.packs),
        dead_rows=sum(pack.rows for pack in manifest.packs) - manifest.counts.keys,
        bytes=sum(pack.bytes for pack in manifest.packs) + manifest.key_table.bytes,
        own_bytes=own + manifest.key_table.bytes,
    )
