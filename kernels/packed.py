"""Documents of different lengths as one sequence: a shared prefix, then one behind the other.

Positions begin again behind the prefix for every document, and a document sees the prefix and
itself: to each it is as if it ran alone, while the model multiplies matrices of all their rows.
What is found out per page or per tile lies on one axis too (`Sections`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch

from sift_index.kernels.plan import TILE

# Entries that fill whole bytes, whatever their bits: a section begins at a byte's border.
ALIGNMENT = 8


@dataclass(frozen=True)
class Sections:
    """Entries of several documents on one axis; each begins at a multiple of `ALIGNMENT`.

    counts: the documents' entries. What lies between the last of one and the first of the next is
    zero.
    """

    counts: tuple[int, ...]

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First entry of each document, and the length of the axis."""
        return tuple(accumulate((_aligned(count) for count in self.counts), initial=0))

    @property
    def total(self) -> int:
        """Length of the axis."""
        return self.starts[-1]

    def join(self, parts: Iterable[torch.Tensor]) -> torch.Tensor:
        """Lay out tensors [..., count], one of each document."""
        padded = [torch.nn.functional.pad(x, (0, -x.shape[-1] % ALIGNMENT)) for x in parts]
        return torch.cat(padded, dim=-1)

    def split(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return the documents' own views of [..., total]."""
        places = zip(self.starts, self.counts, strict=False)
        return [values[..., start : start + count] for start, count in places]


@dataclass(frozen=True)
class Packed:
    """The sequence [prefix, document, document, ...]. lengths: tokens of each document, from 1."""

    prefix: int
    lengths: tuple[int, ...]

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First token of each document in the sequence, and the sequence's length."""
        return tuple(accumulate(self.lengths, initial=self.prefix))

    @property
    def total(self) -> int:
        """Tokens of the sequence."""
        return self.starts[-1]

    @property
    def rows(self) -> list[slice]:
        """The tokens of each document in the sequence."""
        return [slice(a, b) for a, b in zip(self.starts, self.starts[1:], strict=False)]

    def positions(self) -> torch.Tensor:
        """Return int64 [total]: the position of each token, for its rotary embedding."""
        ahead = torch.arange(self.prefix)
        return torch.cat([ahead, *(torch.arange(n) + self.prefix for n in self.lengths)])

    def pages(self, page_size: int) -> Sections:
        """Return where the documents' pages lie."""
        return Sections(tuple(-(-n // page_size) for n in self.lengths))

    def triangles(self, dense_tiles: int) -> Sections:
        """Return where the lower triangles of tiles lie.

        Documents of up to `dense_tiles` tiles have none, and no entries.
        """
        tiles = (-(-n // TILE) for n in self.lengths)
        return Sections(tuple(t * (t + 1) // 2 if t > dense_tiles else 0 for t in tiles))


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT
