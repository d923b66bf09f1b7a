"""Reading an index: one manifest, one key table, packs mapped when first needed. No torch.

An open reader never sees another version than the one it opened, whatever writers do meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from sift_index.formats.errors import IndexNotFoundError, IntegrityError
from sift_index.formats.keytable import KeyTable
from sift_index.formats.location import RemotePath, parse_location
from sift_index.formats.manifest import (
    Manifest,
    current_version,
    open_keytable,
    read_manifest,
    versions,
)
from sift_index.formats.maskcache import MaskCache
from sift_index.formats.masks import DocumentMasks
from sift_index.formats.packs import Pack
from sift_index.formats.problems import damaged
from sift_index.formats.residency import require_room
from sift_index.formats.rowview import SeenRows
from sift_index.formats.store import IndexPaths
from sift_index.formats.verify import VerifyReport, verify_index


class IndexReader:
    """One open version of an index; safe to share between threads, made for many processes."""

    def __init__(self, paths: IndexPaths, manifest: Manifest, keys: KeyTable) -> None:
        """Wrap what was opened; use `IndexReader.open`."""
        self.paths, self.manifest, self.keys = paths, manifest, keys
        self._cache: MaskCache | None = None
        self._packs: list[Pack | None] = [None] * len(manifest.packs)
        self._seen = SeenRows(len(keys))

    @classmethod
    def open(
        cls, root: str | os.PathLike[str] | RemotePath, version: int | None = None
    ) -> IndexReader:
        """Open the current version, or the one asked for, at a folder or s3://bucket/prefix.

        Raises IndexNotFoundError when there is no such version, FeatureError when it needs a newer
        reader, IntegrityError when a file is not the one that was written, StorageError when an
        object store does not answer, UsageError for another kind of URL.
        """
        paths = IndexPaths(parse_location(root))
        paths.require_real_folders()
        seen = current_version(paths)
        try:
            manifest = read_manifest(paths, version)
            return cls(paths, manifest, open_keytable(paths, manifest))
        except IntegrityError:
            if version is not None or current_version(paths) == seen:
                raise
        return cls.open(root)  # a newer version came, and gc removed the one that was being opened

    def __len__(self) -> int:
        return len(self.keys)

    def __contains__(self, key: bytes) -> bool:
        return self.keys.find(key) is not None

    def lookup(self, key: bytes, verify: bool = True) -> DocumentMasks | None:
        """Return the masks of a document by its 16-byte key, or None when it is not indexed.

        The row's checksums are checked on its first use. Raises IntegrityError naming the file,
        IndexNotFoundError when `gc` removed this version before the pack was first needed.
        """
        if self._cache is not None and (kept := self._cache.get(key)) is not None:
            return kept
        found = self.keys.find(key)
        if found is None:
            return None
        number, i, place = found
        pack = self._packs[number] or self._open(number)
        if known := self._seen.numbers[place]:
            row = pack.seen(i, key, self._seen.layouts[known])
        else:
            row = self._first_use(pack, i, key, verify)
            if verify:
                self._seen.add(place, pack.layout(i))
        if self._cache is not None and verify and pack.unpacked_bytes(i):
            self._cache.add(row)
        return row

    def _first_use(self, pack: Pack, i: int, key: bytes, verify: bool) -> DocumentMasks:
        if i >= len(pack):
            raise damaged(self.keys.path, f"rows below {len(pack)} for {pack.path}", i)
        row = pack.row(i, verify)
        if row.key != key:
            raise damaged(pack.path, f"key {key.hex()} in row {i}", row.key.hex())
        return row

    def token_counts(self, places: Sequence[int]) -> list[int]:
        """Return the tokens of keys by their places in the key table; no mask is read.

        Raises IntegrityError for a place that leads nowhere, else as `lookup`.
        """
        packs, rows = self.keys.locations()
        found = []
        for place in places:
            number, row = int(packs[place]), int(rows[place])
            pack = self._packs[number] or self._open(number)
            if row >= len(pack):
                raise damaged(self.keys.path, f"rows below {len(pack)} for {pack.path}", row)
            found.append(int(pack.tokens()[row]))
        return found

    def document_keys(self, doc_id: str) -> tuple[bytes, ...]:
        """Return the ordered keys of a document id; () when the id is unknown."""
        return self.keys.document(doc_id)

    def document_ids(self, prefix: str = "") -> Iterator[str]:
        """Yield the document ids that start with `prefix`, sorted by their UTF-8 bytes."""
        return self.keys.document_ids(prefix)

    def pin(self) -> None:
        """Map every pack now, so that this reader goes on when `gc` removes its version.

        Costs a mapping for each pack: `compact` first when there are thousands. Raises as `lookup`.
        """
        for number, pack in enumerate(self._packs):
            if pack is None:
                self._open(number)

    def keep_decoded(self, limit: int) -> None:
        """Keep decoded masks of zstd blobs, up to `limit` bytes in this process; 0 keeps none.

        Worth it where the same documents come again. Raw masks are views and need no cache.
        """
        self._cache = MaskCache(limit) if limit else None

    def preload(self, budget: int | None = None) -> None:
        """Map every pack and read all pages, so that no lookup waits for the disk.

        Raises UsageError, before anything is read, when the version is larger than `budget` bytes
        (default: than the memory that is available), else as `lookup`.
        """
        require_room(self.manifest, budget)
        self.pin()
        for pack in self._packs:
            if pack is not None:
                pack.touch()

    def verify(self, full: bool = True) -> VerifyReport:
        """Check the files of all versions, receipts included; `full` re-hashes and decodes.

        Problems are collected in the report; `report.require_clean()` raises for them.
        """
        return verify_index(self.paths, full)

    def _open(self, number: int) -> Pack:
        info = self.manifest.packs[number]
        # Two threads may both map the pack; the later one wins and the other mapping is freed.
        try:
            pack = Pack.open(self.paths.pack_path(info.name), info)
        except IntegrityError as error:
            raise self._removed(info.name) or error from error
        pack.require_origin(self.manifest.fingerprint)
        self._packs[number] = pack
        return pack

    def _removed(self, name: str) -> IndexNotFoundError | None:
        version = self.manifest.version
        if version in versions(self.paths):
            return None
        return IndexNotFoundError(
            f"{self.paths.root}: expected pack {name} of version {version}, found that"
            " `sift-index gc` removed this version; open the index again, and call pin() on readers"
            " that have to outlive it"
        )
