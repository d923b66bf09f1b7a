"""What one file says about another: name, size and SHA-256, enough to notice any exchange."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

from sift_index.formats.fields import Fields


@dataclass(frozen=True)
class FileInfo:
    """A file by plain name, with its size in bytes and SHA-256 in hexadecimal."""

    name: str
    bytes: int
    sha256: str

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Fields) -> FileInfo:
        """Read the fields back; raise IntegrityError for a name that is a path, or a bad type."""
        return cls(fields.name("name"), fields.number("bytes"), fields.digest("sha256", 64))


@dataclass(frozen=True)
class PackInfo(FileInfo):
    """A pack file with its number of rows."""

    rows: int

    @classmethod
    def from_json(cls, fields: Fields) -> PackInfo:
        """Read the fields back; raise IntegrityError as FileInfo does."""
        plain = FileInfo.from_json(fields)
        return cls(plain.name, plain.bytes, plain.sha256, fields.number("rows"))

    @property
    def unit(self) -> str:
        """The unit the pack was made from: the name up to its last dash."""
        return self.name.rpartition("-")[0]


def sha256_hex(data: Any) -> str:
    """Return the SHA-256 of any buffer in hexadecimal."""
    return sha256(data).hexdigest()
