"""Text and Markdown files: one file is one document, bytes unchanged but for a leading BOM."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sift_index.pipelines.corpus.base import Document, Location
from sift_index.pipelines.corpus.unicode import decode, encodable

TEXT_SUFFIXES = (".txt", ".md", ".markdown")


@dataclass(frozen=True)
class TextFormat:
    """A whole file as one document whose id is its path in the corpus."""

    def positions(self, path: Path) -> Iterator[int]:
        """Yield the one position without opening the file."""
        yield 0

    def read(self, path: Path, location: Location) -> Document:
        """Read the file; line ends stay as they are.

        Raises DocumentError when it is not UTF-8.
        """
        return Document(encodable(location.file, "file name"), decode(path.read_bytes()))

    def source(self, path: Path, location: Location) -> str:
        """Name the file."""
        return location.file
