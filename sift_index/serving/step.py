"""One forward pass of an engine: the rows of all requests it batches, layer by layer.

Engines mix chunks of several prompts and rows of decoding in one pass. Everything the layers share
is worked out once, when a step is made; every mistake that can be seen on the host is refused
there, or at the first layer, before anything is computed.
"""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise

import numpy as np
import torch

from sift_index.errors import UsageError
from sift_index.kernels import paged
from sift_index.kernels.api import DevicePlan, MaskLayout, attend
from sift_index.kernels.device_plan import upload_tables
from sift_index.kernels.paged import PagedKV, Room
from sift_index.serving.cache import CacheSpec
from sift_index.serving.counters import ServingCounters, ServingSnapshot
from sift_index.serving.ranges import RowRange, check_ranges
from sift_index.serving.visits import Visits

Pair = tuple[torch.Tensor, torch.Tensor]


class Step:
    """The rows of one forward pass, packed one range behind the other.

    Belongs to one thread and stream, and to no CUDA graph, which would replay its rows and tables.
    Takes memory for one layer's keys and values of its longest request, where any of its ranges
    does not begin at 0.

    positions: int32 [total rows], each row's position in its prompt, for rotary embeddings.
    last_rows: int64 [ranges], the last row of each range, whose logits say the next token.
    """

    def __init__(
        self,
        spec: CacheSpec,
        layout: MaskLayout,
        counters: ServingCounters,
        ranges: Sequence[RowRange],
    ) -> None:
        check_ranges(spec, layout, ranges)
        self._spec, self._layout, self._counters = spec, layout, counters
        self._ranges = tuple(ranges)
        self._device = ranges[0].page_table.device
        self._bounds = [0, *accumulate(part.rows for part in ranges)]
        self.positions, self._page = self._slots()
        stops = np.array(self._bounds[1:])
        self.last_rows = upload_tables((stops - 1,), self._device)[0].long()
        self._plans = [part.handle.on(self._device) for part in ranges]
        self._room: Room | None = None
        self._count_rows()

    @torch.no_grad()
    def write(
        self, k_cache: torch.Tensor, v_cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> None:
        """Write one layer's new keys and values, rotated, into the requests' pages.

        k_cache, v_cache: [KV pages, page_size, kv_heads, D] (`CacheSpec`); k, v: [total rows,
        kv_heads, D]. For engines without an operation of their own that does it. Raises UsageError.
        """
        self._spec.check(k_cache, v_cache, self._device)
        self._check_rows("k", k, self._spec.kv_heads)
        self._check_rows("v", v, self._spec.kv_heads)
        row = self.positions % self._spec.page_size
        paged.write(k_cache, v_cache, self._page, row, k, v)

    @torch.no_grad()
    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        new: Pair | None = None,
        scale: float | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend one layer's rows under their plans; returns [total rows, heads, D] in q's dtype.

        q: [total rows, heads, D], rotated. k_cache, v_cache: as in `write`, the new rows in them.
        new: k and v [total rows, kv_heads, D] as they were written, with which prompts that begin
        in this step read no page. scale: of scores, 1 / sqrt(D) by default. out: where to put the
        result. Raises UsageError, before anything is computed, for tensors that do not fit.
        """
        self._check_call(layer, q, k_cache, v_cache, new, out)
        parts = [
            self._attend_range(number, layer, q, (k_cache, v_cache), new, scale)
            for number in range(len(self._ranges))
        ]
        if out is None:
            return torch.cat(parts) if len(parts) > 1 else parts[0]
        for part, (begin, end) in zip(parts, pairwise(self._bounds), strict=True):
            out[begin:end] = part
        return out

    def _attend_range(
        self,
        number: int,
        layer: int,
        q: torch.Tensor,
        cache: Pair,
        new: Pair | None,
        scale: float | None,
    ) -> torch.Tensor:
        """Return [rows, heads, D] of one range."""
        part, plan = self._ranges[number], self._plans[number]
        rows = slice(self._bounds[number], self._bounds[number + 1])
        if new is not None and not part.row_start:
            k, v = (x[rows].transpose(0, 1) for x in new)
            return attend(q[rows].transpose(0, 1), k, v, plan, layer, 0, scale).transpose(0, 1)
        kv = PagedKV(*cache, part.page_table)
        found, first = paged.paged_attention(
            q[rows].transpose(0, 1), kv, plan, layer, part.row_start, self._room_like(kv), scale
        )
        self._count_gathered(part, layer, first)
        return found.transpose(0, 1)

    def _room_like(self, kv: PagedKV) -> Room:
        """Return room for the longest range, kept for all layers of the step."""
        if self._room is None:
            self._room = Room.like(kv, max(part.row_stop for part in self._ranges))
        return self._room

    def _slots(self) -> Pair:
        """Return the position and the KV page of every row, int32 [total rows] each."""
        size = self._spec.page_size
        positions = [np.arange(part.row_start, part.row_stop) for part in self._ranges]
        # Only the pages that new rows are in: engines pass tables as long as their longest prompt.
        pages = [slice(part.row_start // size, -(-part.row_stop // size)) for part in self._ranges]
        before = [0, *accumulate(some.stop - some.start for some in pages)]
        entries = [
            at // size - some.start + begin
            for at, some, begin in zip(positions, pages, before, strict=False)
        ]
        tables = (np.concatenate(positions), np.concatenate(entries))
        position, entry = upload_tables(tables, self._device)
        used = [part.page_table[some] for part, some in zip(self._ranges, pages, strict=True)]
        return position, torch.cat(used)[entry]

    def _count_rows(self) -> None:
        for part, plan in zip(self._ranges, self._plans, strict=True):
            visits = part.handle.visits(self._device)
            self._counters.add_later(visits, partial(_work, visits, plan, part))

    def _count_gathered(self, part: RowRange, layer: int, first: int) -> None:
        size = self._spec.row_bytes
        self._counters.add(ServingSnapshot(bytes_gathered=(part.row_stop - first) * size))
        if first:
            visits, entry = part.handle.visits(self._device), size // self._spec.kv_heads
            self._counters.add_later(visits, partial(_listed, visits, part, layer, entry))

    def _check_call(
        self,
        layer: int,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        new: Pair | None,
        out: torch.Tensor | None,
    ) -> None:
        if not 0 <= layer < self._layout.layers:
            raise UsageError(
                f"layer: expected 0 to {self._layout.layers - 1}, found {layer}; number the "
                "model's attention layers from 0"
            )
        self._spec.check(k_cache, v_cache, self._device)
        self._check_rows("q", q, self._layout.heads)
        for name, x in zip(("new k", "new v"), new or (), strict=False):
            self._check_rows(name, x, self._spec.kv_heads)
        if out is not None:
            self._check_rows("out", out, self._layout.heads)

    def _check_rows(self, name: str, x: torch.Tensor, heads: int) -> None:
        expected = (self._bounds[-1], heads, self._spec.head_dim)
        if (tuple(x.shape), x.dtype, x.device) != (expected, self._spec.dtype, self._device):
            raise UsageError(
                f"{name}: expected {self._spec.dtype} {list(expected)} on {self._device}, found "
                f"{x.dtype} {list(x.shape)} on {x.device}; pack the rows of all ranges in order"
            )
        if x.stride(2) != 1 and x.shape[2] > 1:
            raise UsageError(
                f"{name}: expected a stride of 1 along head_dim, found {x.stride(2)}; call "
                ".contiguous() on it"
            )


def _work(visits: Visits, plan: DevicePlan, part: RowRange) -> ServingSnapshot:
    cells = visits.cells(part.row_start, part.row_stop)
    sparse = 0
    if part.row_start < plan.length:
        bounds = [(max(s.start, part.row_start), s.stop) for s in plan.source.spans]
        sparse = sum(max(0, min(stop, part.row_stop) - start) for start, stop in bounds)
    return ServingSnapshot(
        rows_sparse=sparse,
        rows_dense=part.rows - sparse,
        cells_visited=cells.visited,
        cells_causal=cells.causal,
    )


def _listed(visits: Visits, part: RowRange, layer: int, entry: int) -> ServingSnapshot:
    listed = visits.listed(layer, part.row_start, part.row_stop)
    return ServingSnapshot(bytes_gathered=listed * entry)
