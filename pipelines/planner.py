"""Planning: from scanned documents to units, without running the model.

The same corpus and configuration always give the same units in the same order, whatever has been
committed so far: that is what lets a rerun recognise finished work by its name.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from sift_index.pipelines.catalogue import Catalogue, Mask, Rows
from sift_index.pipelines.documents import Piece
from sift_index.pipelines.pieces import PieceColumns
from sift_index.pipelines.segments import offsets_of

Pieces = tuple[Piece, ...] | PieceColumns


@dataclass(frozen=True)
class Unit:
    """The atom of work, retry and commit: pieces cut by token budget, ordered by length."""

    id: str
    pieces: Pieces

    @property
    def tokens(self) -> int:
        """Tokens of all pieces."""
        if isinstance(self.pieces, PieceColumns):
            return self.pieces.total
        return sum(piece.tokens for piece in self.pieces)

    def halves(self, build_digest: str) -> tuple["Unit", "Unit"]:
        """Split a unit that keeps failing, to isolate the document at fault."""
        middle = len(self.pieces) // 2
        parts = self.pieces[:middle], self.pieces[middle:]
        first, second = (Unit(unit_id(part, build_digest), part) for part in parts)
        return first, second


class UnitPlan(Sequence[Unit]):
    """Units of a catalogue in order; each is made when it is asked for, and not kept.

    Attributes: `rows` int64 [n], the catalogue's pieces in order of length and key; `starts` int64
    [n + 1], the token at which each begins; unit i has the pieces `bounds[i]:bounds[i + 1]`.
    """

    def __init__(self, catalogue: Catalogue, rows: Rows, unit_tokens: int, digest: str) -> None:
        """Cut pieces into units of at most `unit_tokens` tokens; use `cut_units`."""
        self.catalogue, self.rows = catalogue, rows
        self.starts = offsets_of(catalogue.tokens[rows])
        self.bounds = _bounds(self.starts, unit_tokens)
        self._digest = digest

    @property
    def tokens(self) -> int:
        """Tokens of all units."""
        return int(self.starts[-1])

    @property
    def keys(self) -> int:
        """Number of pieces of all units."""
        return len(self.rows)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __iter__(self) -> Iterator[Unit]:
        return (self._unit(number) for number in range(len(self)))

    @overload
    def __getitem__(self, which: int) -> Unit: ...
    @overload
    def __getitem__(self, which: slice) -> list[Unit]: ...
    def __getitem__(self, which: int | slice) -> Unit | list[Unit]:
        numbers = range(len(self))[which]
        if isinstance(numbers, range):
            return [self._unit(number) for number in numbers]
        return self._unit(numbers)

    def pieces(self, first: int, end: int) -> PieceColumns:
        """Return pieces by their places in the plan's order."""
        return self.catalogue.pieces(self.rows[first:end])

    def _unit(self, number: int) -> Unit:
        pieces = self.pieces(self.bounds[number], self.bounds[number + 1])
        return Unit(unit_id(pieces, self._digest), pieces)


def unit_id(pieces: Sequence[Piece], build_digest: str) -> str:
    """Return 32 hex digits: a hash of the sorted keys and the build fingerprint."""
    digest = hashlib.blake2b(bytes.fromhex(build_digest), digest_size=16)
    digest.update(_sorted_keys(pieces))
    return digest.hexdigest()


def _sorted_keys(pieces: Sequence[Piece]) -> bytes:
    if isinstance(pieces, PieceColumns):
        return pieces.sorted_keys()
    return b"".join(sorted(piece.key for piece in pieces))


def cut_units(
    catalogue: Catalogue, unit_tokens: int, build_digest: str, wanted: Mask | None = None
) -> UnitPlan:
    """Cut the catalogue's distinct keys, ordered by length, into units of `unit_tokens` tokens.

    A piece longer than the budget is a unit of its own. `wanted` bool [k] leaves out keys, which
    are in rising order.
    """
    rows = catalogue.distinct.rows
    rows = rows if wanted is None else rows[wanted]
    # Stable: pieces of one length stay in the order of their keys.
    order = np.argsort(_narrow(catalogue.tokens[rows]), kind="stable")
    return UnitPlan(catalogue, rows[order], unit_tokens, build_digest)


def _narrow(tokens: NDArray[np.uint32]) -> NDArray[np.uint16] | NDArray[np.uint32]:
    """Return lengths in 16 bits where they fit: numpy sorts these in one pass."""
    return tokens.astype(np.uint16) if not len(tokens) or tokens.max() < 1 << 16 else tokens


def _bounds(starts: NDArray[np.int64], unit_tokens: int) -> NDArray[np.int64]:
    """Return where units begin, and the end: as many pieces as fit, at least one."""
    bounds, last = [0], len(starts) - 1
    unit_tokens = min(unit_tokens, int(starts[-1]))  # of more, the sum may not fit in 64 bits
    while bounds[-1] < last:
        fits = int(starts.searchsorted(starts[bounds[-1]] + unit_tokens, "right")) - 1
        bounds.append(max(fits, bounds[-1] + 1))
    return np.array(bounds, np.int64)
