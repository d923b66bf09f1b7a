"""What an exported index looks like: the two Parquet tables, and what makes a file one of them.

Parquet is for exchange, never for serving: any tool reads it, and nothing of the index is lost.
One row a document masks row; every other file of the index lies, byte for byte, in a side table.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sift_index.formats.arrowfile import arrow_errors
from sift_index.formats.errors import FeatureError
from sift_index.formats.keytable import KeyColumns
from sift_index.formats.manifest import versions
from sift_index.formats.presence import is_folder, is_there
from sift_index.formats.problems import damaged, misused
from sift_index.formats.schema import FORMAT_VERSION, KEY_TYPE, META_FORMAT, META_KIND
from sift_index.formats.store import IndexPaths

EXCHANGE_VERSION = 1
META_EXCHANGE = b"sift.exchange"
META_MANIFEST = b"sift.manifest"  # SHA-256 of the manifest: what belongs together
META_KEYS = b"sift.keys"  # `columns_digest` of the key table
META_EMPTY = b"sift.empty_documents"
META_FINGERPRINT = b"sift.fingerprint"  # for people; the manifest counts
META_FILES = b"sift.files"  # single file only: the side table in base64

ROWS_KIND, FILES_KIND = b"rows", b"files"
ROWS_NAME = "rows.parquet"
# Loaders pass folders with such a name over: what they load is the rows.
FILES_NAME = Path("__index__", "files.parquet")
SUFFIX = ".parquet"
ADVICE = "give what `sift-index export` wrote, or export the index again"

ROW_FIELDS = (
    pa.field("key", KEY_TYPE, nullable=False),
    pa.field("anchor", pa.uint64(), nullable=False),
    pa.field("tokens", pa.uint32(), nullable=False),
    pa.field("la", pa.large_binary(), nullable=True),
    pa.field("ca", pa.large_binary(), nullable=False),
    pa.field("document_ids", pa.list_(pa.string()), nullable=False),
    pa.field("document_pieces", pa.list_(pa.uint32()), nullable=False),
    pa.field("pack", pa.uint32(), nullable=False),
    pa.field("row", pa.uint32(), nullable=False),
    pa.field("current", pa.bool_(), nullable=False),
)
FILE_FIELDS = (
    pa.field("name", pa.string(), nullable=False),
    pa.field("data", pa.large_binary(), nullable=False),
)
_FIELDS = {ROWS_KIND: ROW_FIELDS, FILES_KIND: FILE_FIELDS}
# Bits have no repeated values worth a dictionary, and no order worth statistics.
_DICTIONARY = ["document_ids.list.element", "pack"]
_STATISTICS = ["key", "tokens", "pack", "row", "current"]


def table_schema(kind: bytes, metadata: Mapping[bytes, bytes]) -> pa.Schema:
    """Return the schema of one of the two tables with its metadata."""
    fixed = {
        META_FORMAT: str(FORMAT_VERSION).encode(),
        META_KIND: kind,
        META_EXCHANGE: str(EXCHANGE_VERSION).encode(),
    }
    return pa.schema(_FIELDS[kind], metadata={**fixed, **metadata})


def table_writer(sink: Any, schema: pa.Schema) -> pq.ParquetWriter:
    """Return a writer with zstd and page checksums; each table it is given is a row group."""
    rows = schema.metadata[META_KIND] == ROWS_KIND
    return pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        write_page_checksum=True,
        use_dictionary=_DICTIONARY if rows else False,
        write_statistics=_STATISTICS if rows else False,
    )


def columns_digest(columns: KeyColumns) -> str:
    """Return the BLAKE2b-128 of a key table's content, whatever file it was written to."""
    digest = blake2b(digest_size=16)
    numbers = (columns.pack, columns.row, columns.anchor, columns.doc_offsets, columns.doc_keys)
    for array in (columns.keys, *numbers):
        digest.update(len(array).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).data)
    for name in columns.doc_ids:
        encoded = name.encode()
        digest.update(len(encoded).to_bytes(4, "little") + encoded)
    return digest.hexdigest()


@dataclass(frozen=True)
class Exchange:
    """An opened export: both tables, checked to be of one kind, version and index."""

    path: Path
    rows: pq.ParquetFile
    files: pq.ParquetFile

    @property
    def metadata(self) -> Mapping[bytes, bytes]:
        """Metadata of the rows."""
        return dict(self.rows.metadata.metadata)

    def row_groups(self) -> Iterator[pa.Table]:
        """Yield the rows a group at a time; page checksums are verified."""
        return _groups(self.rows, self.path)

    def side_files(self) -> Iterator[tuple[str, bytes]]:
        """Yield (name in the index folder, bytes) of the other files; the manifest is first."""
        for table in _groups(self.files, self.path):
            yield from zip(*(column.to_pylist() for column in table.columns), strict=True)


@contextmanager
def open_exchange(path: Path) -> Iterator[Exchange]:
    """Open an export, a file or a folder, and check what it is.

    Raises UsageError for a path that is missing or an index, IntegrityError for anything else or a
    damaged footer, FeatureError for a newer version.
    """
    _require_export(path)
    rows_path = path / ROWS_NAME if path.is_dir() else path
    with _open(rows_path, ROWS_KIND, rows_path) as rows:
        metadata = rows.metadata.metadata
        embedded = not path.is_dir()
        source = _embedded(metadata, path) if embedded else path / FILES_NAME
        with _open(source, FILES_KIND, path if embedded else path / FILES_NAME) as files:
            ours, theirs = metadata[META_MANIFEST], files.metadata.metadata[META_MANIFEST]
            if ours != theirs:
                raise damaged(path, f"tables of one index, {ours!r}", theirs, ADVICE)
            yield Exchange(path, rows, files)


def _require_export(path: Path) -> None:
    expected = "a file or folder that `sift-index export` wrote"
    if not is_there(path):
        raise misused(path, expected, "no such file or folder", "check the path")
    if not is_folder(path):
        return
    if versions(IndexPaths(path)):
        raise misused(path, expected, "an index already", "use it as it is, or copy the folder")
    for name in (ROWS_NAME, FILES_NAME):
        if not (path / name).exists():
            raise damaged(path, expected, f"a folder without {name}", ADVICE)


def parquet_errors(where: object) -> AbstractContextManager[None]:
    """Turn whatever pyarrow raises on damaged input into an IntegrityError naming the file."""
    return arrow_errors(where, "a whole Parquet file", ADVICE)


@contextmanager
def _open(source: Any, kind: bytes, where: Path) -> Iterator[pq.ParquetFile]:
    with parquet_errors(where):
        file = pq.ParquetFile(source, page_checksum_verification=True, memory_map=False)
    with file:
        with parquet_errors(where):
            found, schema = dict(file.metadata.metadata or {}), file.schema_arrow
        _check(found, schema, kind, where)
        yield file


def _check(found: Mapping[bytes, bytes], schema: pa.Schema, kind: bytes, where: Path) -> None:
    if found.get(META_KIND) != kind:
        expected = f"{META_KIND.decode()} = {kind.decode()!r} (an exported index)"
        raise damaged(where, expected, found.get(META_KIND), ADVICE)
    for name, version in ((META_FORMAT, FORMAT_VERSION), (META_EXCHANGE, EXCHANGE_VERSION)):
        if found.get(name) != str(version).encode():
            raise FeatureError(
                f"{where}: expected {name.decode()} = {version}, found {found.get(name)!r};"
                " upgrade sift-index to read this file"
            )
    needed = (META_MANIFEST,) if kind == FILES_KIND else (META_MANIFEST, META_KEYS, META_EMPTY)
    lost = [name.decode() for name in needed if name not in found]
    expected_schema = pa.schema(_FIELDS[kind])
    if lost or not schema.equals(expected_schema, check_metadata=False):
        names = [name for name in expected_schema.names if name not in schema.names]
        found_text = f"{schema.names} without {[*names, *lost]}" if names or lost else f"{schema}"
        raise damaged(where, f"the columns {expected_schema.names}", found_text, ADVICE)


def _embedded(metadata: Mapping[bytes, bytes], path: Path) -> pa.BufferReader:
    if META_FILES not in metadata:
        raise damaged(path, f"metadata {META_FILES.decode()}", "none (give its folder)", ADVICE)
    with parquet_errors(path):
        return pa.BufferReader(base64.b64decode(metadata[META_FILES], validate=True))


def _groups(file: pq.ParquetFile, where: Path) -> Iterator[pa.Table]:
    for number in range(file.num_row_groups):
        with parquet_errors(f"{where} row group {number}"):
            table = file.read_row_group(number, use_threads=False)
            table.validate(full=True)
        yield table


def write_files(sink: Any, manifest: str, files: Iterable[tuple[str, bytes]], group: int) -> int:
    """Write the side table, a row group for about `group` bytes; return how many files."""
    schema = table_schema(FILES_KIND, {META_MANIFEST: manifest.encode()})
    waiting: list[tuple[str, bytes]] = []
    count = size = 0
    with table_writer(sink, schema) as writer:
        for name, data in files:
            waiting.append((name, data))
            count, size = count + 1, size + len(data)
            if size >= group:
                writer.write_table(_file_table(waiting, schema))
                waiting, size = [], 0
        if waiting:
            writer.write_table(_file_table(waiting, schema))
    return count


def _file_table(files: list[tuple[str, bytes]], schema: pa.Schema) -> pa.Table:
    names, data = zip(*files, strict=True)
    return pa.table([pa.array(names, pa.string()), pa.array(data, pa.large_binary())], schema)
