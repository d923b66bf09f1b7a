"""Parquet back to an index: the same bytes where this software writes them, else the same content.

Arrow may lay out the same columns in other bytes one day. Then packs and key table get the names
and hashes of the new bytes, and every row is verified before the index appears.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sift_index.formats.canonical import dump_checked, load_checked
from sift_index.formats.exchange import (
    ADVICE,
    META_EMPTY,
    META_KEYS,
    META_MANIFEST,
    Exchange,
    columns_digest,
    open_exchange,
)
from sift_index.formats.fields import Fields
from sift_index.formats.fileinfo import FileInfo, PackInfo, sha256_hex
from sift_index.formats.keytable import keytable_bytes
from sift_index.formats.manifest import Manifest, open_keytable, read_manifest
from sift_index.formats.packs import PackColumns, columns_bytes, write_pack_file
from sift_index.formats.problems import damaged
from sift_index.formats.rekeying import KeyColumnsBuilder
from sift_index.formats.sidefiles import read_side_receipt, side_name
from sift_index.formats.staging import staged_folder
from sift_index.formats.store import IndexPaths, write_if_absent
from sift_index.formats.verify import verify_index


@dataclass(frozen=True)
class ImportReport:
    """What was made; `identical`: packs and key table have the bytes of the exported index."""

    path: Path
    version: int
    rows: int
    packs: int
    keys: int
    documents: int
    files: int
    identical: bool


def import_index(source: Path, root: Path) -> ImportReport:
    """Make an index folder from an export, a file or a folder; it appears whole or not at all.

    Raises IntegrityError for a damaged, foreign or changed file, FeatureError for a newer format,
    UsageError when `source` is missing or an index, or `root` holds anything, BuildError when it
    cannot be written.
    """
    with open_exchange(source) as exchange, staged_folder(root) as temp:
        paths = IndexPaths(temp)
        paths.create()
        manifest = _manifest(exchange)
        build = _Rebuild(exchange, paths, manifest)
        build.packs()
        build.key_table()
        files = build.side_files()
        if build.changed:
            verify_index(paths).require_clean()
        open_keytable(paths, read_manifest(paths))
    counts = manifest.counts
    return ImportReport(
        root,
        manifest.version,
        sum(pack.rows for pack in manifest.packs),
        len(manifest.packs),
        counts.keys,
        counts.documents,
        files,
        not build.changed,
    )


def _manifest(exchange: Exchange) -> Manifest:
    name, data = next(exchange.side_files(), ("nothing", b""))
    where = f"{exchange.path}: {name}"
    expected = exchange.metadata[META_MANIFEST].decode("ascii", "replace")
    if sha256_hex(data) != expected:
        raise damaged(where, f"a manifest with sha256 {expected}", sha256_hex(data), ADVICE)
    return Manifest.from_json(Fields(load_checked(data, where), where))


@dataclass
class _Rebuild:
    """One import under way; `changed` maps names to what replaces them, as the manifest has it."""

    exchange: Exchange
    paths: IndexPaths
    manifest: Manifest
    changed: dict[str, FileInfo] = field(default_factory=dict)
    _keys: KeyColumnsBuilder = field(default_factory=KeyColumnsBuilder)

    def packs(self) -> None:
        """Write the packs of the version, one at a time."""
        tables = _pack_tables(self.exchange)
        for number, info in enumerate(self.manifest.packs):
            if info.rows:
                self._pack(number, info, next(tables, None))
        if next(tables, None) is not None:
            found = "rows of another one"
            raise self._bad(f"rows of {len(self.manifest.packs)} packs", found)

    def key_table(self) -> None:
        """Write the key table from the rows that are current."""
        columns = self._keys.finish(self._empty())
        expected = self.exchange.metadata[META_KEYS].decode("ascii", "replace")
        found = columns_digest(columns)
        if found != expected:
            raise self._bad(f"keys and documents of digest {expected}", found)
        data, info = keytable_bytes(columns), self.manifest.key_table
        self._note(info, FileInfo(info.name, len(data), sha256_hex(data)))
        write_if_absent(self.paths.root / info.name, data)

    def side_files(self) -> int:
        """Write all other files, the manifest last; return how many there are."""
        files = self.exchange.side_files()
        first = next(files)
        count = 1
        for name, data in files:
            count += 1
            self._write(name, data)
        manifest = self.paths.manifest_path(self.manifest.version)
        write_if_absent(manifest, self._manifest(first[1]))
        return count

    def _pack(self, number: int, info: PackInfo, table: pa.Table | None) -> None:
        wanted = [[number] * info.rows, [*range(info.rows)]]
        if table is None or [table["pack"].to_pylist(), table["row"].to_pylist()] != wanted:
            found = "others" if table is None else f"{len(table)} rows of another order"
            raise self._bad(f"the {info.rows} rows of pack {number}", found)
        self._write_pack(info, _columns(table))
        self._keys.add(table)

    def _write_pack(self, info: PackInfo, columns: PackColumns) -> None:
        digest = self.manifest.fingerprint.build_digest
        data = columns_bytes(info.unit, digest, columns)
        self._note(info, write_pack_file(self.paths, info.unit, data, info.rows))

    def _note(self, expected: FileInfo, found: FileInfo) -> None:
        if found != expected:
            self.changed[expected.name] = found

    def _receipt(self, name: str, data: bytes) -> bytes:
        """Return a receipt that names its pack as it is now; an empty pack is written here."""
        pack = read_side_receipt(f"{self.exchange.path}: {name}", data).pack
        if not pack.rows and not self.paths.pack_path(pack.name).exists():
            self._write_pack(pack, PackColumns([], [], [], [], []))
        if pack.name not in self.changed:
            return data
        return _replaced(data, name, {"pack": self.changed[pack.name].to_json()})

    def _manifest(self, data: bytes) -> bytes:
        if not self.changed:
            return data
        packs = [self.changed.get(pack.name, pack).to_json() for pack in self.manifest.packs]
        table = self.manifest.key_table
        changes = {
            "packs": packs,
            "key_table": self.changed.get(table.name, table).to_json(),
        }
        return _replaced(data, "manifest", changes)

    def _write(self, name: str, data: bytes) -> None:
        place = side_name(name, self.exchange.path)
        receipt = place.parent.name == self.paths.commits.name
        data = self._receipt(name, data) if receipt else data
        write_if_absent(self.paths.root / place, data)

    def _empty(self) -> tuple[str, ...]:
        where = f"{self.exchange.path}: {META_EMPTY.decode()}"
        return Fields(load_checked(self.exchange.metadata[META_EMPTY], where), where).texts("ids")

    def _bad(self, expected: str, found: object) -> Exception:
        return damaged(self.exchange.path, expected, found, ADVICE)


def _pack_tables(exchange: Exchange) -> Iterator[pa.Table]:
    """Yield the rows of each pack, joined over row groups."""
    waiting: list[pa.Table] = []
    for table in exchange.row_groups():
        number = table["pack"].to_numpy()
        cuts = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(table)]
        for start, end in zip(cuts, cuts[1:], strict=False):
            part = table.slice(start, end - start)
            if waiting and len(part) and waiting[-1]["pack"][0] != part["pack"][0]:
                yield pa.concat_tables(waiting)
                waiting = []
            waiting += [part] if len(part) else []
    if waiting:
        yield pa.concat_tables(waiting)


def _columns(table: pa.Table) -> PackColumns:
    anchors = [anchor or None for anchor in table["anchor"].to_pylist()]
    rest = (table[name].to_pylist() for name in ("tokens", "la", "ca"))
    return PackColumns(table["key"].to_pylist(), anchors, *rest)


def _replaced(data: bytes, name: str, changes: Mapping[str, Any]) -> bytes:
    """Return a checked JSON file with fields replaced; those nobody here knows are kept."""
    return dump_checked({**load_checked(data, name), **changes})
