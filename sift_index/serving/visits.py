"""How many score cells a range of rows visits, counted on the device that holds the bits.

Only the decoded plan knows how many keys each list has. A few sums over layers and heads are made
behind the decoding and copied back while the device goes on; nobody waits for them until they are
asked for.
"""

import numpy as np
import torch

from sift_index.kernels.api import TILE, Cells, DevicePlan
from sift_index.kernels.bits import unpack
from sift_index.kernels.prompt_tables import Ints

# Entries unpacked at a time: all of one document of 128K tokens would fill a GiB and more.
UNPACKED = 1 << 24


class Visits:
    """The keys that each tile of a decoded plan sees, over all layers and heads of a rank."""

    def __init__(self, plan: DevicePlan) -> None:
        self._plan = plan
        self._sizes = [plan.counts.shape[0] * plan.counts.shape[2]]
        sums = [plan.counts.sum(1, dtype=torch.int64).flatten()]
        self._marked = [number for number, s in enumerate(plan.source.spans) if s.la is not None]
        for number, bits in zip(self._marked, self._la_bits(), strict=True):
            sums.append(_holders(plan, bits, plan.source.spans[number].tiles))
        self._sizes += [x.numel() for x in sums[1:]]
        self._sums, self._done = _to_host(torch.cat(sums))
        self._arrived: list[Ints] | None = None
        self._before: Ints | None = None

    def ready(self) -> bool:
        """Whether the sums are here, so that nothing below waits."""
        return self._done is None or self._done.query()

    def cells(self, row_start: int, row_stop: int) -> Cells:
        """Return the cells of rows [row_start, row_stop), visited and causal; waits if need be."""
        layout, length = self._plan.layout, self._plan.length
        heads = layout.layers * layout.heads
        causal = heads * (_triangle(row_stop) - _triangle(row_start))
        if row_start >= length:
            return Cells(causal, causal)
        behind = heads * (_triangle(max(row_stop, length)) - _triangle(length))
        return Cells(self._planned(row_start, row_stop) + behind, causal)

    def listed(self, layer: int, row_start: int, row_stop: int) -> int:
        """Return the entries of all lists of a layer that end in front of a chunk's last span."""
        first, stop = self._plan.tiles.covering(row_start, row_stop)
        span = int(self._plan.tiles.span[first:stop].max(initial=-1))
        return int(self._counts()[layer, 2 * span + 2]) if span >= 0 else 0

    def _planned(self, row_start: int, row_stop: int) -> int:
        """Return the visited cells of those rows that the plan has."""
        layout, tiles = self._plan.layout, self._plan.tiles
        begin, end = np.maximum(tiles.begin, row_start), np.minimum(tiles.end, row_stop)
        rows = np.maximum(end - begin, 0)
        # Keys in front of a tile are seen by all of its rows, those inside it causally.
        before = int((rows * self._keys_before()).sum()) * (layout.heads // layout.mask_heads)
        inside = rows * (begin - tiles.begin) + rows * (rows + 1) // 2
        return before + int(inside.sum()) * layout.layers * layout.heads

    def _la_bits(self) -> list[torch.Tensor]:
        """Return the LA bits of each span that has any: uint8 [layers, mask_heads, bytes]."""
        spans = self._plan.source.spans
        at = sum(span.ca.numel() for span in spans)
        found = []
        for la in (span.la for span in spans if span.la is not None):
            found.append(self._plan.bits[at : at + la.numel()].view(la.shape))
            at += la.numel()
        return found

    def _counts(self) -> Ints:
        """Return int64 [layers, slots]: the keys of each list prefix, over mask heads."""
        return self._parts()[0].reshape(self._plan.counts.shape[0], -1)

    def _parts(self) -> list[Ints]:
        if self._arrived is None:
            if self._done is not None:
                self._done.synchronize()
            self._arrived = np.split(self._sums.numpy(), np.cumsum(self._sizes)[:-1])
        return self._arrived

    def _keys_before(self) -> Ints:
        """Return int64 [T]: visited keys in front of each tile's first row, over mask heads."""
        if self._before is None:
            tiles, layout = self._plan.tiles, self._plan.layout
            own = (tiles.begin - tiles.own_start) * (layout.layers * layout.mask_heads)
            for number, on in zip(self._marked, self._parts()[1:], strict=True):
                of_span = (tiles.span == number) & (tiles.tile_row > 0)
                own[of_span] = self._own_keys(on)
            self._before = own + self._counts().sum(0)[tiles.slot]
        return self._before

    def _own_keys(self, on: Ints) -> Ints:
        """Return int64 [tiles - 1]: own keys in front of the tile rows from 1 on.

        on: int64 [triangle], in how many layers and mask heads each tile is.
        """
        layout = self._plan.layout
        count = int((2 * len(on)) ** 0.5)
        square = np.zeros((count, count), dtype=np.int64)
        square[np.tri(count, dtype=bool)] = on
        if layout.neighbour:
            row = np.arange(1, count)
            square[row, row - 1] = layout.layers * layout.mask_heads
        found: Ints = np.tril(square, -1).sum(1)[1:] * TILE
        return found


def _holders(plan: DevicePlan, bits: torch.Tensor, tiles: int) -> torch.Tensor:
    """Return int64 [triangle]: in how many layers and mask heads each tile of a span is on.

    bits: uint8 [layers, mask_heads, bytes].
    """
    entries = tiles * (tiles + 1) // 2
    pieces = bits.flatten(0, 1).split(max(1, UNPACKED // entries))
    on = (unpack(piece, entries, plan.layout.levels) >= plan.level for piece in pieces)
    return torch.stack([piece.sum(0) for piece in on]).sum(0)


def _triangle(rows: int) -> int:
    """Return the cells of a causal prompt of so many rows."""
    return rows * (rows + 1) // 2


def _to_host(x: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event | None]:
    """Return x on the host, and what says when it has arrived."""
    if not x.is_cuda:
        return x.cpu(), None
    host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(x.device))
    return host, done
