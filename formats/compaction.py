"""Compacting: packs without dead rows, and few of them, holding the very same blobs.

Deleting leaves rows that no table names, and builds leave a pack a unit. A version made here reads
the same as the one before; that one keeps its packs, and disk space comes back with `gc`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sift_index.formats.draft import Draft, publish_draft
from sift_index.formats.fileinfo import PackInfo
from sift_index.formats.keyorder import as_items, find_positions, stack_keys
from sift_index.formats.keytable import KeyColumns, KeyTable
from sift_index.formats.manifest import (
    Manifest,
    open_keytable,
    read_manifest,
    require_writable,
)
from sift_index.formats.meanwhile import conflict_when_replaced
from sift_index.formats.packhead import read_pack_head
from sift_index.formats.packs import Pack, PackColumns, columns_bytes, write_pack_file
from sift_index.formats.parallel import ask_all
from sift_index.formats.problems import misused
from sift_index.formats.store import IndexPaths

WRITER = "sift-index compact"
PACK_BYTES = 64 << 20
UNIT_PREFIX = "compact-"


@dataclass(frozen=True)
class Compaction:
    """What a compaction did: the version it made, packs read and written, dead rows left out."""

    manifest: Manifest
    packs_before: int
    packs_after: int
    dead_rows: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, eq=False)
class _Source:
    """A pack and its rows that the key table names, rising, int64 [live]."""

    info: PackInfo
    live: NDArray[np.int64]

    @property
    def dead(self) -> int:
        return self.info.rows - len(self.live)


def compact(paths: IndexPaths, pack_bytes: int = PACK_BYTES) -> Compaction | None:
    """Publish a version whose packs hold no dead rows; None when there is nothing to gain.

    Packs under half of `pack_bytes` are merged up to that size, the others stay unless they hold
    dead rows. Rows are checked before they are copied. Raises UsageError for a size below 1,
    IntegrityError for a damaged row, CommitConflictError when another writer published first;
    then nothing changed and the same call may be tried again.
    """
    if pack_bytes < 1:
        raise misused("pack size", "at least 1 byte", pack_bytes, "leave it out for 64 MiB")
    current = read_manifest(paths)
    require_writable(current)
    with conflict_when_replaced(paths, current):
        return _publish_compacted(paths, current, pack_bytes)


def _publish_compacted(paths: IndexPaths, current: Manifest, pack_bytes: int) -> Compaction | None:
    table = open_keytable(paths, current)
    sources = _sources(current, table)
    chosen = [source for source in sources if source.dead or source.info.bytes < pack_bytes / 2]
    groups = _groups(paths, chosen, pack_bytes)
    if not any(source.dead for source in chosen) and len(groups) >= len(chosen):
        return None
    moved = {source.info.name for source in chosen}
    kept = [info for info in current.packs if info.name not in moved]
    written = [_write(paths, current, group) for group in groups]
    packs = (*kept, *written)
    draft = Draft(
        fingerprint=current.fingerprint,
        packs=packs,
        columns=_moved(paths, table, current, packs),
        tokens=current.counts.tokens,
        units=current.units,
        quality=current.quality,
    )
    manifest = publish_draft(paths, draft, current, writer=WRITER)
    return Compaction(
        manifest,
        len(current.packs),
        len(packs),
        sum(source.dead for source in sources),
        sum(pack.bytes for pack in current.packs),
        sum(pack.bytes for pack in packs),
    )


def _sources(manifest: Manifest, table: KeyTable) -> list[_Source]:
    pack, row = table.locations()
    order = np.lexsort((row, pack))
    bounds = np.searchsorted(pack[order], np.arange(len(manifest.packs) + 1))
    rows = row[order].astype(np.int64)
    return [
        _Source(info, rows[bounds[number] : bounds[number + 1]])
        for number, info in enumerate(manifest.packs)
    ]


# Files are not kept open: an index may have more packs than a process may map.
_Group = list[tuple[PackInfo, list[int]]]


def _groups(paths: IndexPaths, sources: Sequence[_Source], pack_bytes: int) -> list[_Group]:
    """Share the live rows out to packs of at most `pack_bytes`; a larger row is a pack alone."""
    groups: list[_Group] = []
    room = 0
    for source in sources:
        pack = Pack.open(paths.pack_path(source.info.name), source.info)
        for row, size in _sizes(pack, source.live):
            if not groups or size > room:
                groups.append([])
                room = pack_bytes
            if not groups[-1] or groups[-1][-1][0] is not source.info:
                groups[-1].append((source.info, []))
            groups[-1][-1][1].append(row)
            room -= size
    return groups


def _sizes(pack: Pack, rows: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield (row, bytes it takes in a pack)."""
    fixed = 16 + 8 + 4 + 2 * 8  # key, anchor, tokens, two offsets
    total = np.full(len(rows), fixed, np.int64)
    for name in ("la", "ca"):
        column = pack.batch.column(pack.batch.schema.get_field_index(name)).take(pa.array(rows))
        lengths = pc.binary_length(column).fill_null(0)
        total += np.asarray(lengths).astype(np.int64)
    return zip(rows.tolist(), total.tolist(), strict=True)


def _write(paths: IndexPaths, manifest: Manifest, group: _Group) -> PackInfo:
    """Write one pack; its unit is named by its keys, so a run that was killed finds it again."""
    parts = []
    for info, rows in group:
        pack = Pack.open(paths.pack_path(info.name), info)
        pack.require_origin(manifest.fingerprint)
        for row in rows:
            pack.row(row)  # raises for a damaged row: damage is reported, never copied
        parts.append(pack.batch.take(pa.array(rows)))
    joined = pa.Table.from_batches([part.replace_schema_metadata(None) for part in parts])
    joined = joined.take(pa.array(np.argsort(as_items(_keys(joined)), kind="stable")))
    columns = PackColumns(*(column.to_pylist() for column in joined.columns))
    unit = UNIT_PREFIX + blake2b(b"".join(columns.key), digest_size=16).hexdigest()
    data = columns_bytes(unit, manifest.fingerprint.build_digest, columns)
    return write_pack_file(paths, unit, data, len(columns.key))


def _keys(table: pa.Table) -> NDArray[np.uint8]:
    return stack_keys(b"".join(table.column("key").to_pylist()))


def _moved(
    paths: IndexPaths, table: KeyTable, manifest: Manifest, after: Sequence[PackInfo]
) -> KeyColumns:
    """Return the key table with every key where it lies now."""
    old = {info.name: number for number, info in enumerate(manifest.packs)}
    renumbered = np.zeros(len(old), np.uint32)
    for number, info in enumerate(after):
        renumbered[old.get(info.name, [])] = number
    columns = table.columns()
    pack, row = renumbered[columns.pack], columns.row.copy()
    new = [(number, info) for number, info in enumerate(after) if info.name not in old]
    build = manifest.fingerprint.build_digest
    heads = ask_all(lambda item: read_pack_head(paths.pack_path(item[1].name), item[1], build), new)
    for (number, _), head in zip(new, heads, strict=True):
        places = find_positions(columns.keys, head.keys)
        pack[places], row[places] = number, np.arange(len(head.keys), dtype=np.uint32)
    return replace(columns, pack=pack, row=row)
