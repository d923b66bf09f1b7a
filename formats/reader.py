"""Reading an index: one manifest, one key table, packs mapped when first needed. No torch.

An open reader never sees another version than the one it opened, whatever writers do meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sift_index.formats.keytable import KeyTable
from sift_index.formats.manifest import Manifest, open_keytable, read_manifest
from sift_index.formats.masks import DocumentMasks
from sift_index.formats.packs import Pack
from sift_index.formats.problems import damaged
from sift_index.formats.store import IndexPaths
from sift_index.formats.verify import VerifyReport, verify_index


class IndexReader:
    """One open version of an index; safe to share between threads, made for many processes."""

    def __init__(self, paths: IndexPaths, manifest: Manifest, keys: KeyTable) -> None:
        """Wrap what was opened; use `IndexReader.open`."""
        self.paths, self.manifest, self.keys = paths, manifest, keys
        self._packs: list[Pack | None] = [None] * len(manifest.packs)

    @classmethod
    def open(cls, root: str | Path, version: int | None = None) -> IndexReader:
        """Open the current version, or the one asked for.

        Raises IndexNotFoundError when the folder has no such version, FeatureError when it needs
        a newer reader, IntegrityError when a file is not the one that was written.
        """
        paths = IndexPaths(Path(root))
        manifest = read_manifest(paths, version)
        return cls(paths, manifest, open_keytable(paths, manifest))

    def __len__(self) -> int:
        return len(self.keys)

    def __contains__(self, key: bytes) -> bool:
        return self.keys.find(key) is not None

    def lookup(self, key: bytes, verify: bool = True) -> DocumentMasks | None:
        """Return the masks of a document by its 16-byte key, or None when it is not indexed.

        The row's checksums are checked on its first use. Raises IntegrityError naming the file.
        """
        place = self.keys.find(key)
        if place is None:
            return None
        pack = self._packs[place[0]] or self._open(place[0])
        if place[1] >= len(pack):
            raise damaged(self.keys.path, f"rows below {len(pack)} for {pack.path}", place[1])
        row = pack.row(place[1], verify)
        if row.key != key:
            raise damaged(pack.path, f"key {key.hex()} in row {place[1]}", row.key.hex())
        return row

    def document_keys(self, doc_id: str) -> tuple[bytes, ...]:
        """Return the ordered keys of a document id; () when the id is unknown."""
        return self.keys.document(doc_id)

    def document_ids(self) -> Iterator[str]:
        """Yield all document ids, sorted."""
        return self.keys.document_ids()

    def verify(self, full: bool = True) -> VerifyReport:
        """Check the files of all versions, receipts included; `full` re-hashes and decodes.

        Problems are collected in the report; `report.require_clean()` raises for them.
        """
        return verify_index(self.paths, full)

    def _open(self, number: int) -> Pack:
        info = self.manifest.packs[number]
        # Two threads may both map the pack; the later one wins and the other mapping is freed.
        pack = Pack.open(self.paths.pack_path(info.name), info)
        self._packs[number] = pack
        return pack
