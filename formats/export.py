"""An index as Parquet, for tools that know nothing of it; `importing` turns it back.

Streams: memory is bounded by the key table, one group of rows and, in a single file, the
compressed side table.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sift_index.formats.canonical import canonical_bytes, dump_checked
from sift_index.formats.exchange import (
    FILES_NAME,
    META_EMPTY,
    META_FILES,
    META_FINGERPRINT,
    META_KEYS,
    META_MANIFEST,
    ROWS_KIND,
    ROWS_NAME,
    SUFFIX,
    columns_digest,
    table_schema,
    table_writer,
    write_files,
)
from sift_index.formats.fileinfo import PackInfo, sha256_hex
from sift_index.formats.keytable import KeyColumns, KeyTable
from sift_index.formats.manifest import Manifest, open_keytable, read_manifest
from sift_index.formats.meanwhile import not_found_when_removed
from sift_index.formats.packs import Pack
from sift_index.formats.sidefiles import SideFiles
from sift_index.formats.staging import staged_file, staged_folder
from sift_index.formats.store import IndexPaths

GROUP_BYTES = 1 << 25  # of blobs in a row group: what a reader holds at once
GROUP_ROWS = 1 << 17


@dataclass(frozen=True)
class ExportReport:
    """What was written; `left_out` receipts belong to no version yet."""

    path: Path
    version: int
    rows: int
    packs: int
    receipts: int
    failed: int
    probes: int
    left_out: int
    bytes: int


def export_index(paths: IndexPaths, out: Path, version: int | None = None) -> ExportReport:
    """Write one version, the current by default, as `<out>.parquet` or as a folder.

    Every pack is re-hashed, so that nothing damaged is exported. Raises IndexNotFoundError, also
    when `gc` removes the version meanwhile; IntegrityError, FeatureError; UsageError when `out`
    exists, BuildError when it cannot be written.
    """
    manifest = read_manifest(paths, version)
    with not_found_when_removed(paths, manifest):
        return _export(paths, manifest, out)


def _export(paths: IndexPaths, manifest: Manifest, out: Path) -> ExportReport:
    table = open_keytable(paths, manifest)
    files = SideFiles(paths, manifest)
    source = _Source(paths, manifest, table, files)
    single = out.suffix.lower() == SUFFIX
    with staged_file(out) if single else staged_folder(out) as temp:
        rows = _write_file(temp, source) if single else _write_folder(temp, source)
        size = sum(file.stat().st_size for file in (temp, *temp.rglob("*")) if file.is_file())
    return ExportReport(
        out,
        manifest.version,
        rows,
        len(manifest.packs),
        files.receipts,
        files.failed,
        files.probes,
        files.left_out,
        size,
    )


@dataclass(frozen=True)
class _Source:
    paths: IndexPaths
    manifest: Manifest
    table: KeyTable
    files: SideFiles

    @property
    def manifest_digest(self) -> str:
        return sha256_hex(self.files.manifest_bytes())

    def schema(self) -> pa.Schema:
        columns = self.table.columns()
        metadata = {
            META_MANIFEST: self.manifest_digest.encode(),
            META_KEYS: columns_digest(columns).encode(),
            META_EMPTY: dump_checked({"ids": _empty_documents(columns)}),
            META_FINGERPRINT: canonical_bytes(self.manifest.fingerprint.to_json()),
        }
        return table_schema(ROWS_KIND, metadata)


def _write_file(temp: Path, source: _Source) -> int:
    side = io.BytesIO()
    write_files(side, source.manifest_digest, source.files, GROUP_BYTES)
    return _write_rows(temp, source, {META_FILES: base64.b64encode(side.getvalue())})


def _write_folder(temp: Path, source: _Source) -> int:
    (temp / FILES_NAME).parent.mkdir()
    write_files(temp / FILES_NAME, source.manifest_digest, source.files, GROUP_BYTES)
    return _write_rows(temp / ROWS_NAME, source, {})


def _write_rows(path: Path, source: _Source, footer: dict[bytes, bytes]) -> int:
    """Write the rows in groups; return how many. `footer` is metadata kept out of the schema."""
    schema = source.schema()
    count = 0
    with table_writer(path, schema) as writer:
        for batches in _groups(_batches(source, schema)):
            table = pa.Table.from_batches(batches, schema)
            writer.write_table(table, row_group_size=len(table))
            count += len(table)
        # Arrow keeps a second copy of schema metadata; of the side table one is enough.
        writer.add_key_value_metadata(footer)
    return count


def _groups(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            yield waiting
            waiting, rows, size = [], 0, 0
    if waiting:
        yield waiting


def _batches(source: _Source, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all packs in order, in pieces of at most about a row group."""
    documents = _DocumentsByKey(source.table)
    for number, info in enumerate(source.manifest.packs):
        pack = _verified_pack(source, info)
        step = max(1, GROUP_BYTES * len(pack) // max(1, info.bytes))
        for start in range(0, len(pack), step):
            rows = np.arange(start, min(start + step, len(pack)), dtype=np.uint32)
            places = _places(source.table, pack, number, rows)
            part = pack.batch.slice(start, len(rows))
            columns = {
                "key": part["key"],
                "anchor": part["anchor"].fill_null(0),
                "tokens": part["tokens"],
                "la": part["la"],
                "ca": part["ca"],
                **documents.columns(places),
                "pack": pa.array(np.full(len(rows), number, np.uint32)),
                "row": pa.array(rows),
                "current": pa.array(places >= 0),
            }
            yield pa.record_batch([columns[name] for name in schema.names], schema=schema)


def _verified_pack(source: _Source, info: PackInfo) -> Pack:
    path = source.paths.pack_path(info.name)
    pack = Pack.open(path, info)
    pack.require_origin(source.manifest.fingerprint)
    pack.verify()
    return pack


def _places(
    table: KeyTable, pack: Pack, number: int, rows: NDArray[np.uint32]
) -> NDArray[np.int64]:
    """Return where the key table names these rows, int64 [rows]; -1 for rows it does not."""
    places = table.positions(pack.keys()[rows[0] : rows[-1] + 1])
    packs, table_rows = table.locations()
    named = (places >= 0) & (packs[places] == number) & (table_rows[places] == rows)
    return np.where(named, places, -1)


class _DocumentsByKey:
    """The document map turned round: the ids, and places in them, of a key."""

    def __init__(self, table: KeyTable) -> None:
        offsets, keys = table.document_places()
        order = np.argsort(keys, kind="stable")
        document = np.repeat(np.arange(table.document_count), np.diff(offsets))[order]
        self._keys, self._document = keys[order], document
        self._piece = (order - offsets[document]).astype(np.uint32)
        self._ids = pa.array(table.document_ids(), pa.string())

    def columns(self, places: NDArray[np.int64]) -> dict[str, pa.Array]:
        """Return document_ids and document_pieces of keys by their places; none for -1."""
        starts = np.searchsorted(self._keys, places, "left")
        lengths = np.searchsorted(self._keys, places, "right") - starts
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        flat = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        bounds = pa.array(offsets.astype(np.int32))
        ids = self._ids.take(pa.array(self._document[flat]))
        pieces = pa.array(self._piece[flat], pa.uint32())
        return {
            "document_ids": pa.ListArray.from_arrays(bounds, ids),
            "document_pieces": pa.ListArray.from_arrays(bounds, pieces),
        }


def _empty_documents(columns: KeyColumns) -> list[str]:
    """Return ids without a key, which no row can name."""
    empty = np.flatnonzero(np.diff(columns.doc_offsets) == 0)
    return [columns.doc_ids[place] for place in empty]
