"""Documents that cannot be indexed, one small file each, so that `ls failed/` shows them."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from sift_index.formats.canonical import dump_checked, load_checked
from sift_index.formats.errors import IntegrityError
from sift_index.formats.fields import Fields
from sift_index.formats.problems import damaged
from sift_index.formats.storage import Place
from sift_index.formats.store import (
    IndexPaths,
    file_names,
    read_file,
    remove_all,
    replace_atomically,
)

_ADVICE = "remove this file: no reader needs it, and a build of the document writes it again"


@dataclass(frozen=True)
class FailedDocument:
    """Where a document came from (`source`, any text) and why it was not indexed."""

    source: str
    reason: str

    def line(self) -> str:
        """Return source and reason for people; many reasons name the source themselves."""
        named = self.reason.startswith(self.source)
        return self.reason if named else f"{self.source}: {self.reason}"

    def to_json(self) -> dict[str, str]:
        """Return the fields as JSON values."""
        return {"source": self.source, "reason": self.reason}

    @classmethod
    def from_json(cls, fields: Fields) -> FailedDocument:
        """Read the fields back; raise IntegrityError for a missing one."""
        return cls(fields.text("source"), fields.text("reason"))


def failure_path(paths: IndexPaths, source: str) -> Place:
    """Return the file of one source: BLAKE2b-128 of its UTF-8 text in hexadecimal."""
    name = blake2b(source.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return paths.failed / f"{name}.json"


def record_failure(paths: IndexPaths, failure: FailedDocument) -> Place:
    """Write or replace the record of one document; raise BuildError when it cannot be written."""
    path = failure_path(paths, failure.source)
    replace_atomically(path, dump_checked(failure.to_json()))
    return path


def read_failures(paths: IndexPaths) -> list[FailedDocument]:
    """Return all records, sorted by source; raise IntegrityError for a damaged one.

    Those that another build forgets meanwhile are left out.
    """
    records = (find_failure(paths, name) for name in file_names(paths.failed, ".json"))
    return sorted(filter(None, records), key=lambda record: record.source)


def clear_failure(paths: IndexPaths, source: str) -> None:
    """Forget one document, known or not; raise BuildError when the file cannot be removed."""
    remove_all([failure_path(paths, source)])


def find_failure(paths: IndexPaths, name: str) -> FailedDocument | None:
    """Return the record in one file of `failed/`, None when it went since it was listed."""
    try:
        return read_failure(paths, name)
    except IntegrityError:
        if name in file_names(paths.failed, ".json"):
            raise
        return None  # the document is fine now


def read_failure(paths: IndexPaths, name: str) -> FailedDocument:
    """Return the record in one file of `failed/`; raise IntegrityError for a damaged one."""
    path = paths.failed / name
    data = read_file(path)
    try:
        record = FailedDocument.from_json(Fields(load_checked(data, path), path))
    except IntegrityError as error:
        raise damaged(path, "the record of a failed document", "other bytes", _ADVICE) from error
    if failure_path(paths, record.source) != path:
        raise damaged(path, "the record of the source in its name", record.source, _ADVICE)
    return record
