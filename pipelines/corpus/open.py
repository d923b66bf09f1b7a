"""From a path to the reader for what lies there.

The kind is decided by what is on disk and never by asking a hub, and what can be known up front
(a missing path or column, a damaged file) is said before a build starts.
"""

import os
from pathlib import Path

from sift_index.errors import CorpusError
from sift_index.formats.presence import is_folder, is_there, resolved
from sift_index.pipelines.corpus.base import CorpusReader, FileFormat, UnusableCorpusError
from sift_index.pipelines.corpus.dataset import BUILDERS, DatasetReader
from sift_index.pipelines.corpus.fields import Fields
from sift_index.pipelines.corpus.files import FileReader, FolderReader, ignored_files, printable
from sift_index.pipelines.corpus.jsonl import JSONL_SUFFIXES, JsonlFormat
from sift_index.pipelines.corpus.parquet import PARQUET_SUFFIXES, ParquetFormat
from sift_index.pipelines.corpus.text import TEXT_SUFFIXES, TextFormat

# The mark of a folder written by `save_to_disk`, and a word that only its version of the file has.
_SAVED_MARKS = {"state.json": b'"_data_files"', "dataset_dict.json": b'"splits"'}


def open_corpus(
    path: str | os.PathLike[str],
    text_field: str = "text",
    id_field: str | None = None,
    without: str | os.PathLike[str] | None = None,
) -> CorpusReader:
    """Open a folder of files, one file, or a data set saved on disk.

    `without` is a folder that holds no documents, such as an index that lies inside the corpus.
    Raises UnusableCorpusError when the path does not exist, holds nothing that is read or lacks the
    columns asked for, CorpusError when it is damaged as a whole.
    """
    if not is_there(path):
        raise UnusableCorpusError(
            f"expected a corpus at {printable(os.fspath(path))!r}, found no such file or folder; "
            "give the path of local data (nothing is downloaded)"
        )
    root = Path(os.path.abspath(path))
    inside = None if without is None else _below(root, without)
    reader = _reader(root, Fields(text_field, id_field), inside)
    next(reader.locations(), None)  # raises what can be known before a build
    return reader


def file_formats(fields: Fields) -> dict[str, FileFormat]:
    """Return the format of every suffix that is read inside folders."""
    formats: dict[str, FileFormat] = dict.fromkeys(TEXT_SUFFIXES, TextFormat())
    formats |= dict.fromkeys(JSONL_SUFFIXES, JsonlFormat(fields))
    return formats | dict.fromkeys(PARQUET_SUFFIXES, ParquetFormat(fields))


def _below(root: Path, folder: str | os.PathLike[str]) -> str | None:
    """Return a folder relative to the root, posix; None for one that does not lie below it."""
    inside = Path(os.path.relpath(resolved(folder), resolved(root)))
    return None if inside.parts[:1] in ((), ("..",)) else inside.as_posix()


def _reader(path: Path, fields: Fields, without: str | None) -> CorpusReader:
    formats = file_formats(fields)
    if is_folder(path):
        return DatasetReader(path, fields) if _is_saved(path) else _folder(path, formats, without)
    suffix = path.suffix.lower()
    if path.is_file() and suffix in formats:
        return FileReader(path.parent, path.name, formats[suffix])
    if path.is_file() and suffix in BUILDERS:
        return DatasetReader(path, fields)
    found = f"a file ending in {suffix!r}" if path.is_file() else "something else"
    raise UnusableCorpusError(
        f"{printable(path.name)}: expected a folder or a regular file ending in "
        f"{', '.join([*formats, *BUILDERS])}, found {found}; convert it to one of these"
    )


def _folder(path: Path, formats: dict[str, FileFormat], without: str | None) -> FolderReader:
    reader = FolderReader(path, formats, without)
    first = next(reader.readable(), None)
    if first is None:
        raise _nothing_readable(reader)
    if not first.file:
        raise CorpusError(
            f"{printable(str(path))}: expected a readable folder, found that it cannot be "
            "opened; check its permissions"
        )
    return reader


def _nothing_readable(reader: FolderReader) -> UnusableCorpusError:
    ignored = ignored_files(reader)
    example = f" (such as {ignored.example!r})" if ignored.count else ""
    return UnusableCorpusError(
        f"{printable(str(reader.root))}: expected files ending in {', '.join(reader.formats)}, "
        f"found none and {ignored.count} other files{example}; convert them or give another folder"
    )


def _is_saved(path: Path) -> bool:
    return any(_contains(path / name, mark) for name, mark in _SAVED_MARKS.items())


def _contains(path: Path, mark: bytes) -> bool:
    try:
        return mark in path.read_bytes()
    except OSError:
        return False
