"""Readers of one file and of a folder of files.

Both leave the content to a file format. They differ in what a file that cannot be listed means:
alone it is the whole corpus, in a folder it is one failed source among many.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sift_index.errors import CorpusError, DocumentError
from sift_index.pipelines.corpus.base import (
    NOT_LISTED,
    CorpusReader,
    Document,
    FileFormat,
    Location,
    MissingFieldError,
    UnusableCorpusError,
)
from sift_index.pipelines.corpus.tree import Entry, Kind, walk


@dataclass(frozen=True)
class IgnoredFiles:
    """How many files of a corpus were not read for their kind, and the first of them."""

    count: int
    example: str


@dataclass(frozen=True)
class FileReader:
    """The documents of one file."""

    root: Path
    file: str
    format: FileFormat

    def locations(self) -> Iterator[Location]:
        """Stream the file's locations; raises CorpusError when it cannot be listed."""
        try:
            for position in self.format.positions(self.root / self.file):
                yield Location(self.file, position)
        except (OSError, DocumentError) as error:
            kind = UnusableCorpusError if isinstance(error, MissingFieldError) else CorpusError
            raise kind(f"{printable(self.file)}: {_reason(error)}") from error

    def read(self, location: Location) -> Document:
        """Read one document; raises DocumentError."""
        return _read(self.format, self.root, location)

    def source(self, location: Location) -> str:
        """Name the place for people."""
        return printable(self.format.source(self.root / location.file, location))


@dataclass(frozen=True)
class FolderReader:
    """The documents of every readable file below a folder; `formats` is keyed by suffix.

    `without` is a folder below it that holds none, relative to it.
    """

    root: Path
    formats: Mapping[str, FileFormat]
    without: str | None = None

    def locations(self) -> Iterator[Location]:
        """Stream the locations file by file; what cannot be listed has position `NOT_LISTED`."""
        for entry in self.readable():
            try:
                for position in self._positions(entry.file):
                    yield Location(entry.file, position)
            except (OSError, DocumentError):
                yield Location(entry.file, NOT_LISTED)

    def read(self, location: Location) -> Document:
        """Read one document; raises DocumentError."""
        if location.position == NOT_LISTED:
            raise DocumentError(f"{self.source(location)}: {self._why_not_listed(location.file)}")
        return _read(self._format(location.file), self.root, location)

    def source(self, location: Location) -> str:
        """Name the place for people."""
        if location.position == NOT_LISTED:
            return printable(location.file or ".")
        path = self.root / location.file
        return printable(self._format(location.file).source(path, location))

    def ignored(self) -> IgnoredFiles:
        """Walk the folder and count what is not read: other suffixes and links out of it."""
        count, example = 0, ""
        for entry in walk(self.root, self.without):
            if not self._is_readable(entry):
                count, example = count + 1, example or printable(entry.file)
        return IgnoredFiles(count, example)

    def readable(self) -> Iterator[Entry]:
        """Stream the entries that are read, and folders that should have been."""
        return (entry for entry in walk(self.root, self.without) if self._is_readable(entry))

    def _is_readable(self, entry: Entry) -> bool:
        known = entry.kind is Kind.FILE and _suffix(entry.file) in self.formats
        return known or entry.kind is Kind.UNLISTED

    def _format(self, file: str) -> FileFormat:
        return self.formats[_suffix(file)]

    def _positions(self, file: str) -> Iterator[int]:
        path = self.root / file
        if os.path.isdir(path):
            os.listdir(path)  # raises for a folder that the walk could not open
            return iter(())
        return self._format(file).positions(path)

    def _why_not_listed(self, file: str) -> str:
        try:
            next(self._positions(file), None)
        except (OSError, DocumentError) as error:
            return _reason(error)
        return "expected what the listing found, found it readable now; run the command again"


def ignored_files(reader: CorpusReader) -> IgnoredFiles:
    """Return what a folder holds besides the files that are read; nothing for other readers."""
    return reader.ignored() if isinstance(reader, FolderReader) else IgnoredFiles(0, "")


def printable(name: str) -> str:
    """Return a name that any terminal and file accepts, with undecodable bytes escaped."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def _suffix(file: str) -> str:
    return PurePosixPath(file).suffix.lower()


def _read(format: FileFormat, root: Path, location: Location) -> Document:
    path = root / location.file
    try:
        return format.read(path, location)
    except (OSError, DocumentError) as error:
        place = printable(format.source(path, location))
        raise DocumentError(f"{place}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    found = error.strerror or str(error)
    return f"expected readable data, found '{found}'; check the path and its permissions"
