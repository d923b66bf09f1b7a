"""What the planner and the workers know about a corpus.

The planner lists locations and the workers come back to them later, often on another machine, so
a location is a plain value and a reader is picklable: it holds paths and field names, and what it
caches stays in its process.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sift_index.errors import CorpusError, DocumentError, UsageError

# Position of a file (or folder) whose documents cannot be listed; reading it says why.
NOT_LISTED = -1


@dataclass(frozen=True)
class Location:
    """Where one document lies.

    `file` is a posix path relative to the corpus root, "" for a data set. `position` is a byte
    offset (JSON Lines), a row counted from 0 (Parquet, data sets), 0 (text file) or `NOT_LISTED`.
    """

    file: str
    position: int


@dataclass(frozen=True)
class Document:
    """One text of the corpus under its document id."""

    id: str
    text: str


class UnusableCorpusError(CorpusError, UsageError):
    """What was given as a corpus, or as the name of a field, cannot be one: wrong usage."""


class MissingFieldError(DocumentError):
    """A record, or a table, does not have a field that was asked for."""


class CorpusReader(Protocol):
    """A picklable view of one corpus."""

    def locations(self) -> Iterator[Location]:
        """Stream the place of every document, in the same order every time.

        Raises CorpusError when nothing of the corpus can be listed.
        """

    def read(self, location: Location) -> Document:
        """Read one document.

        Raises DocumentError, naming the place and the reason.
        """

    def source(self, location: Location) -> str:
        """Name the place for people: `notes/a.md`, `x.jsonl:17`, `x.parquet row 5`."""


class FileFormat(Protocol):
    """One kind of file; its errors give the reason only, and the reader adds the place."""

    def positions(self, path: Path) -> Iterator[int]:
        """Stream the position of every document of the file.

        Raises DocumentError or OSError when the file cannot be listed.
        """

    def read(self, path: Path, location: Location) -> Document:
        """Read the document of `path` at the location.

        Raises DocumentError or OSError.
        """

    def source(self, path: Path, location: Location) -> str:
        """Name the place for people; never fails."""
