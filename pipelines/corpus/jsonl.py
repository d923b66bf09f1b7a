"""JSON Lines: one JSON object per line, found again by its byte offset.

Listing only looks for line ends, so that a planner can spread the parsing over its tasks.
"""

import codecs
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sift_index.errors import DocumentError
from sift_index.pipelines.corpus.base import Document, Location
from sift_index.pipelines.corpus.cache import Latest
from sift_index.pipelines.corpus.fields import Fields, kind_of
from sift_index.pipelines.corpus.lines import LineNumbers
from sift_index.pipelines.corpus.unicode import decode

JSONL_SUFFIXES = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class JsonlFormat:
    """Lines of a file as documents; a document without an id field is called `file:line`."""

    fields: Fields
    _lines: Latest[Path, LineNumbers] = field(default_factory=Latest, repr=False, compare=False)

    def positions(self, path: Path) -> Iterator[int]:
        """Yield the byte offset of every line that is not blank."""
        offset = 0
        with path.open("rb") as file:
            for line in file:
                if not _is_blank(line):
                    yield offset
                offset += len(line)

    def read(self, path: Path, location: Location) -> Document:
        """Read the line at the location.

        Raises DocumentError when it is not a JSON object with the fields asked for.
        """
        with path.open("rb") as file:
            file.seek(location.position)
            line = file.readline()
        record = _parse(decode(line, location.position))
        return self.fields.document(record, lambda: self._name(path, location))

    def source(self, path: Path, location: Location) -> str:
        """Name the file and line, or the byte when the lines cannot be counted."""
        try:
            return self._name(path, location)
        except OSError:
            return f"{location.file} byte {location.position}"

    def _name(self, path: Path, location: Location) -> str:
        lines = self._lines.get(path, lambda: LineNumbers(path))
        return f"{location.file}:{lines.at(location.position)}"


def _is_blank(line: bytes) -> bool:
    if line.startswith(codecs.BOM_UTF8):
        line = line.removeprefix(codecs.BOM_UTF8)
    return not line or line.isspace()


def _parse(line: str) -> Mapping[str, object]:
    record = _loaded(line)
    if not isinstance(record, dict):
        raise DocumentError(
            f"expected a JSON object, found {kind_of(record)}; write one object per line"
        )
    return record


def _loaded(line: str) -> object:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise DocumentError(
            f"expected a JSON object, found malformed JSON at column {error.colno} "
            f"({error.msg}); correct or remove the line"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DocumentError(
            f"expected a JSON object, found one beyond the limits of the parser ({error}); "
            "simplify or remove the line"
        ) from error
