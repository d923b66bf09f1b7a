"""Pieces as arrays that behave like a tuple of pieces: a unit of thousands travels in a few copies.

Each piece is made when it is looked at, so that a driver of a thousand workers makes none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from sift_index.formats.keyorder import Keys, as_items
from sift_index.pipelines.corpus import Location
from sift_index.pipelines.documents import Piece


@dataclass(frozen=True, eq=False)
class PieceColumns(Sequence[Piece]):
    """n pieces, those of a split document included.

    keys: uint8 [n, 16]. tokens: uint32 [n]. Piece i lies in `files[file[i]]` at `position[i]`, as
    the `number[i]`-th of its document; int64 [n] each.
    """

    keys: Keys
    tokens: NDArray[np.uint32]
    files: tuple[str, ...]
    file: NDArray[np.int64]
    position: NDArray[np.int64]
    number: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Piece]:
        keys, names = self.keys.tobytes(), [self.files[which] for which in self.file.tolist()]
        places = map(Location, names, self.position.tolist())
        starts = range(0, len(keys), 16)
        rest = zip(self.tokens.tolist(), places, self.number.tolist(), strict=True)
        return (Piece(keys[at : at + 16], *of) for at, of in zip(starts, rest, strict=True))

    @overload
    def __getitem__(self, which: int) -> Piece: ...
    @overload
    def __getitem__(self, which: slice) -> "PieceColumns": ...
    def __getitem__(self, which: int | slice) -> "Piece | PieceColumns":
        if isinstance(which, slice):
            return self._slice(which)
        place = range(len(self))[which]
        return next(iter(self._slice(slice(place, place + 1))))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (tuple, PieceColumns)) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    @property
    def total(self) -> int:
        """Tokens of all pieces."""
        return int(self.tokens.sum(dtype=np.int64))

    def sorted_keys(self) -> bytes:
        """Return all keys in rising order, one behind another."""
        return self.keys[np.argsort(as_items(self.keys))].tobytes()

    def _slice(self, which: slice) -> "PieceColumns":
        return PieceColumns(
            self.keys[which],
            self.tokens[which],
            self.files,
            self.file[which],
            self.position[which],
            self.number[which],
        )
