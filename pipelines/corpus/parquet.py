"""Parquet files: one row is one document.

A row group is the smallest piece that can be decoded, so the last one is kept: rows read one after
another decode each group once, and no more than one group is in memory.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sift_index.errors import DocumentError
from sift_index.pipelines.corpus.base import Document, Location
from sift_index.pipelines.corpus.cache import Latest
from sift_index.pipelines.corpus.fields import Fields
from sift_index.pipelines.corpus.unicode import not_utf8

PARQUET_SUFFIXES = (".parquet",)


@dataclass(frozen=True)
class _Opened:
    file: Any  # pq.ParquetFile
    columns: list[str]
    starts: list[int]  # first row of every row group, then the number of rows


@dataclass(frozen=True)
class ParquetFormat:
    """Rows of a file as documents; a document without an id column is called `file#row`."""

    fields: Fields
    _opened: Latest[Path, _Opened] = field(default_factory=Latest, repr=False, compare=False)
    _group: Latest[tuple[Path, int], Any] = field(default_factory=Latest, repr=False, compare=False)

    def positions(self, path: Path) -> Iterator[int]:
        """Yield every row number; only the footer is read.

        Raises DocumentError when the footer is damaged or a column does not exist.
        """
        yield from range(self._open(path).starts[-1])

    def read(self, path: Path, location: Location) -> Document:
        """Read the row at the location.

        Raises DocumentError when its row group is damaged or a value has another type.
        """
        record = self._record(path, location.position)
        return self.fields.document(record, lambda: f"{location.file}#{location.position}")

    def source(self, path: Path, location: Location) -> str:
        """Name the file and row, counted from 0."""
        return f"{location.file} row {location.position}"

    def _open(self, path: Path) -> _Opened:
        return self._opened.get(path, lambda: _open(path, self.fields))

    def _record(self, path: Path, row: int) -> dict[str, object]:
        opened = self._open(path)
        rows = opened.starts[-1]
        if not 0 <= row < rows:
            raise DocumentError(f"expected a row below {rows}, found {row}; list the corpus again")
        group = bisect_right(opened.starts, row) - 1
        table = self._group.get((path, group), lambda: _row_group(opened, group))
        return _row(table, row - opened.starts[group])


def _open(path: Path, fields: Fields) -> _Opened:
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        names = file.schema_arrow.names
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _damaged(error) from error
    return _Opened(file, fields.columns(names), list(accumulate(sizes, initial=0)))


def _row_group(opened: _Opened, group: int) -> Any:
    try:
        return opened.file.read_row_group(group, columns=opened.columns)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _damaged(error) from error


def _row(table: Any, row: int) -> dict[str, object]:
    try:
        record: dict[str, object] = table.slice(row, 1).to_pylist()[0]
    except UnicodeDecodeError as error:
        raise not_utf8(error) from error
    return record


def _damaged(error: Exception) -> Exception:
    if isinstance(error, OSError) and error.errno:
        return error  # the operating system refused: the reader names that itself
    return DocumentError(
        f"expected a Parquet file, found a damaged one ({error}); write or fetch it again"
    )
