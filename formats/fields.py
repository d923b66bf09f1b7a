"""Typed access to parsed JSON, so that a well-formed but forged file ends in a named error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sift_index.formats.problems import damaged
from sift_index.formats.store import plain_name

_HEX = re.compile(r"[0-9a-f]*\Z")
_MAX = 2**63 - 1


@dataclass(frozen=True)
class Fields:
    """A JSON object read from `where`; every getter raises IntegrityError naming the field."""

    values: Mapping[str, Any]
    where: object

    def text(self, name: str) -> str:
        """Return a text field."""
        return str(self._typed(name, str, "text"))

    def number(self, name: str) -> int:
        """Return an integer of 0..2**63-1."""
        value = self._typed(name, int, "an integer from 0")
        if isinstance(value, bool) or not 0 <= value <= _MAX:
            raise self._bad(name, "an integer from 0", value)
        return int(value)

    def digest(self, name: str, digits: int) -> str:
        """Return a lower-case hexadecimal field of exactly `digits` digits."""
        return self.hex(self.text(name), name, digits)

    def hex(self, value: object, name: str, digits: int) -> str:
        """Return `value` if it is text of exactly `digits` lower-case hexadecimal digits."""
        if not isinstance(value, str) or len(value) != digits or not _HEX.match(value):
            raise self._bad(name, f"{digits} hexadecimal digits", value)
        return value

    def name(self, name: str) -> str:
        """Return a field that is a plain file name."""
        return plain_name(self.text(name), self.where)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts."""
        values = self.items(name)
        if not all(isinstance(value, str) for value in values):
            raise self._bad(name, "a list of texts", "something else")
        return tuple(values)

    def names(self, name: str) -> tuple[str, ...]:
        """Return a list of plain file names."""
        return tuple(plain_name(value, self.where) for value in self.texts(name))

    def items(self, name: str) -> list[Any]:
        """Return a list."""
        return list(self._typed(name, list, "a list"))

    def mapping(self, name: str) -> dict[str, Any]:
        """Return an object as a plain dict."""
        return dict(self._typed(name, dict, "an object"))

    def child(self, name: str) -> Fields:
        """Return an object as Fields."""
        return Fields(self.mapping(name), f"{self.where}: {name}")

    def children(self, name: str) -> list[Fields]:
        """Return a list of objects as Fields."""
        return [self._item(name, i, value) for i, value in enumerate(self.items(name))]

    def _item(self, name: str, i: int, value: object) -> Fields:
        if not isinstance(value, dict):
            raise self._bad(f"{name}[{i}]", "an object", value)
        return Fields(value, f"{self.where}: {name}[{i}]")

    def _typed(self, name: str, kind: type, expected: str) -> Any:
        value = self.values.get(name)
        if not isinstance(value, kind):
            raise self._bad(name, expected, value)
        return value

    def _bad(self, name: str, expected: str, found: object) -> Exception:
        return damaged(f"{self.where}: field {name!r}", expected, f"{found!r:.80}")
