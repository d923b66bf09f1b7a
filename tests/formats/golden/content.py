"""What the golden indexes of format version 1 hold, written by hand: the truth for every reader.

One digit is one entry of a mask; a row of digits belongs to one (layer, head), rows in order
[layer][head]. Nothing here is computed, so no change of the code can change it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    """A document whose ids count up from `first`, with its masks as rows of digits."""

    first: int
    tokens: int
    ca: tuple[str, ...]
    la: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Index:
    """One golden index: its layout, its units by version, its document ids by version."""

    layers: int
    heads: int
    page: int
    levels: int
    units: tuple[tuple[str, bool, tuple[Document, ...]], ...]  # (unit, zstd?, documents)
    names: tuple[dict[str, tuple[Document, ...]], ...]


SPEC = Document(0, 40, ("10", "11", "01", "00"))  # the document of SPEC.md's examples
SHORT = Document(900, 5, ("1", "0", "0", "1"))  # fewer than 16 tokens: no anchor
OWN = Document(  # 10 pages, 3 tile rows: neither fills its last byte
    100,
    300,
    ("1000000001", "0111111110", "1010101010", "0000000000"),
    ("101101", "111111", "101001", "100110"),
)
LONG = Document(7, 2048, ("1" * 64,) * 4, ("1" * 136,) * 4)  # shrinks: stored as zstd
GRADES = Document(3, 33, ("30211", "01230", "33333", "00000", "10000", "00003"))
GRADED_OWN = Document(
    50,
    129,
    tuple(f"{digits:<017}" for digits in ("3", "12", "0302", "00000000000000001", "1" * 17, "0")),
    ("301", "123", "000", "333", "103", "210"),
)

INDEXES = {
    "plain": Index(
        2, 2, 32, 1,
        (("unit-a", False, (SPEC, SHORT, OWN)), ("unit-b", True, (LONG,))),
        (
            {"spec": (SPEC,), "notes/ä.md": (SHORT, OWN)},
            {"long": (LONG,), "twice": (OWN, OWN)},
        ),
    ),
    "levels": Index(
        2, 3, 8, 2,
        (("unit-c", False, (GRADES, GRADED_OWN)),),
        ({"grades": (GRADES, GRADED_OWN)},),
    ),
}  # fmt: skip
