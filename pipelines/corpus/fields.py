"""Which fields of a record make a document.

JSON Lines, Parquet and data sets differ in how a record is fetched, not in what it must hold; the
rules about missing, null and non-string values are here once.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from sift_index.errors import DocumentError
from sift_index.pipelines.corpus.base import Document, MissingFieldError
from sift_index.pipelines.corpus.unicode import encodable

ID_FIELDS = ("id", "doc_id", "_id")
_MOST_SHOWN = 12


@dataclass(frozen=True)
class Fields:
    """Names of the text field and, when the user gave one, of the id field."""

    text: str = "text"
    id: str | None = None

    def id_field(self, names: Collection[str]) -> str | None:
        """Return the field that holds ids: the given one, else the first usual one present."""
        if self.id is not None:
            return self.id
        return next((n for n in ID_FIELDS if n in names and n != self.text), None)

    def columns(self, names: Collection[str]) -> list[str]:
        """Return the columns to read, the text first.

        Raises MissingFieldError with the reason when one does not exist.
        """
        _require(names, self.text, "--text-field")
        id_field = self.id_field(names)
        if id_field is None or id_field == self.text:
            return [self.text]
        _require(names, id_field, "--id-field")
        return [self.text, id_field]

    def document(self, record: Mapping[str, object], default_id: Callable[[], str]) -> Document:
        """Make a document of a record; `default_id` serves records without an id field.

        Raises DocumentError with the reason when a field is missing or of another type.
        """
        text = self._text(record)
        id_field = self.id_field(record)
        name = default_id() if id_field is None else _id(record, id_field)
        return Document(encodable(name, "document id"), text)

    def _text(self, record: Mapping[str, object]) -> str:
        _require(record, self.text, "--text-field")
        text = record[self.text]
        if not isinstance(text, str):
            raise DocumentError(
                f"expected a string in field {self.text!r}, found {kind_of(text)}; the fields "
                f"are {_listed(record)}; correct it or name another field with --text-field"
            )
        return encodable(text, f"field {self.text!r}")


def kind_of(value: object) -> str:
    """Name the type of a value in JSON's words."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    names |= {list: "an array", dict: "an object"}
    return names.get(type(value), f"a value of type {type(value).__name__}")


def _id(record: Mapping[str, object], field: str) -> str:
    _require(record, field, "--id-field")
    value = record[field]
    # NaN (the only value unequal to itself) is how data frames write a missing cell.
    missing = value is None or value != value
    name = "" if missing else str(value)
    if isinstance(value, (dict, list, bytes)) or not name.strip():
        found = "an empty string" if isinstance(value, str) else kind_of(value)
        raise DocumentError(
            f"expected a string or number as id in field {field!r}, found {found}; "
            "give the document an id or name another field with --id-field"
        )
    return name


def _require(names: Collection[str], field: str, option: str) -> None:
    if field not in names:
        raise MissingFieldError(
            f"expected a field {field!r}, found {_listed(names)}; name the field with {option}"
        )


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(repr(name) for name in list(names)[:_MOST_SHOWN])
    more = len(names) - _MOST_SHOWN
    return (shown + (f" and {more} more" if more > 0 else "")) or "no field"
