"""Data sets that the library `datasets` opens: saved folders and files of its packaged builders.

Nothing here may reach a network. Loading even a local CSV file through `datasets` reports a
download to the hub unless the library is offline, so loading happens inside `_offline`.
"""

import glob
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from sift_index.errors import CorpusError, DocumentError
from sift_index.pipelines.corpus.base import (
    Document,
    Location,
    MissingFieldError,
    UnusableCorpusError,
)
from sift_index.pipelines.corpus.cache import Latest
from sift_index.pipelines.corpus.fields import ID_FIELDS, Fields
from sift_index.pipelines.corpus.unicode import not_utf8

BUILDERS = {".csv": "csv", ".json": "json", ".arrow": "arrow"}


@dataclass(frozen=True)
class _Splits:
    names: list[str]  # of the places, such as `mine/train`
    tables: list[Any]  # datasets.Dataset
    starts: list[int]  # first row of every split, then the number of rows


@dataclass(frozen=True)
class DatasetReader:
    """Rows of a data set as documents, its splits one after another.

    A document without an id column is called `path#row`, or `path/split#row` in a set of splits.
    """

    path: Path
    fields: Fields
    _loaded: Latest[Path, _Splits] = field(default_factory=Latest, repr=False, compare=False)

    def locations(self) -> Iterator[Location]:
        """Stream every row; raises CorpusError when the data set cannot be opened."""
        return (Location("", row) for row in range(self._splits().starts[-1]))

    def read(self, location: Location) -> Document:
        """Read one row; raises DocumentError."""
        try:
            table, name, row = self._find(location)
            return self.fields.document(_row(table, row), lambda: f"{name}#{row}")
        except DocumentError as error:
            raise DocumentError(f"{self.source(location)}: {error}") from error

    def source(self, location: Location) -> str:
        """Name the data set, its split and the row, counted from 0 within the split."""
        try:
            _, name, row = self._find(location)
        except CorpusError:
            return f"{self.path.name} row {location.position}"
        return f"{name} row {row}"

    def _find(self, location: Location) -> tuple[Any, str, int]:
        splits = self._splits()
        row, rows = location.position, splits.starts[-1]
        if not 0 <= row < rows:
            raise DocumentError(f"expected a row below {rows}, found {row}; list the corpus again")
        index = bisect_right(splits.starts, row) - 1
        return splits.tables[index], splits.names[index], row - splits.starts[index]

    def _splits(self) -> _Splits:
        return self._loaded.get(self.path, lambda: _split(self.path, self.fields))


def _split(path: Path, fields: Fields) -> _Splits:
    loaded = _load(path, fields)
    named = {path.name: loaded}
    if isinstance(loaded, dict):
        named = {f"{path.name}/{split}": table for split, table in loaded.items()}
    tables = [_narrowed(name, table, fields) for name, table in named.items()]
    return _Splits(list(named), tables, list(accumulate(map(len, tables), initial=0)))


def _narrowed(name: str, table: Any, fields: Fields) -> Any:
    try:
        return table.with_format(None).select_columns(fields.columns(table.column_names))
    except MissingFieldError as error:
        raise UnusableCorpusError(f"{name}: {error}") from error


def _load(path: Path, fields: Fields) -> Any:
    import datasets  # slow to import, and needed for these corpora only

    with _offline(datasets):
        try:
            if path.is_dir():
                return datasets.load_from_disk(str(path))
            return datasets.load_dataset(**_builder_arguments(path, fields), split="train")
        except Exception as error:  # the library's builders raise whatever their parsers raise
            raise CorpusError(
                f"{path.name}: expected a data set that `datasets` can open, found "
                f"{error.__cause__ or error}; check that it is complete"
            ) from error


def _builder_arguments(path: Path, fields: Fields) -> dict[str, Any]:
    builder = BUILDERS[path.suffix.lower()]
    arguments: dict[str, Any] = {"path": builder, "data_files": glob.escape(str(path))}
    if builder == "csv":
        # Without this an id 007 becomes the number 7, and the text "NA" a missing value.
        wanted = {fields.text, *([fields.id] if fields.id is not None else ID_FIELDS)}
        arguments |= {"converters": dict.fromkeys(sorted(wanted), str), "keep_default_na": False}
    return arguments


def _row(table: Any, row: int) -> dict[str, object]:
    try:
        record: dict[str, object] = table[row]
    except UnicodeDecodeError as error:
        raise not_utf8(error) from error
    return record


@contextmanager
def _offline(datasets: Any) -> Iterator[None]:
    before = datasets.config.HF_HUB_OFFLINE
    quiet = datasets.utils.are_progress_bars_disabled()
    datasets.config.HF_HUB_OFFLINE = True
    datasets.utils.disable_progress_bars()
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before
        if not quiet:
            datasets.utils.enable_progress_bars()
