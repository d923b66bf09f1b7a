"""A whole sparse plan on the device: every layer decoded at once, and the host never waits.

The host uploads two buffers, the packed bits of all spans and the integer tables of the prompt.
A few torch operations turn the CA bits into list offsets; the LA bits stay packed, since a kernel
reads one of them per 128 x 128 tile. Nothing here reads a device value back, so the same code
decodes on a CPU, on a GPU, and (for shapes alone) on the meta device.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from sift_index.kernels.plan import TILE, MaskLayout, SparsePlan
from sift_index.kernels.prompt_tables import (
    Ints,
    PageTable,
    TileTable,
    check_plan,
    page_table,
    span_table,
    tile_table,
)

# Columns of `DevicePlan.row_tiles`. A kernel written against them takes them as constants.
BEGIN, END, OWN_START, SLOT, TILE_ROW, LA_BASE, LA_STRIDE, SPAN = range(8)
ROW_COLUMNS = 8
# `LA_BASE` of tiles that have no bits to read: those of glue and of dense spans, and first tiles,
# whose own keys are the boundary window and the diagonal.
DENSE = -1


@dataclass(frozen=True, eq=False)
class Chunk:
    """What rows [row_start, row_stop) of a prompt take; the same for all layers.

    first_tile, tiles: the row tiles to run; those behind the table are cut from the plan's end.
    order: int32 [tiles], their numbers, dear ones first. The first `dense` of them are dense rows,
    glue, which see every key in front of them.
    list_stop: the key in front of which every list prefix of these rows ends, so that later keys
    need no compaction. pages: how many pages begin in front of it.
    """

    row_start: int
    row_stop: int
    first_tile: int
    tiles: int
    order: torch.Tensor = field(repr=False)
    dense: int
    list_stop: int
    pages: int


@dataclass(frozen=True, eq=False)
class DevicePlan:
    """A `SparsePlan` as tensors on one device, for all layers.

    One key list per layer and mask head: glue and selected pages in position order.
    page_start, page_length: int32 [P], the keys of every page of the prompt.
    offsets: int32 [layers, mask_heads, P + 1], where each page's keys begin in the list; a page is
        on where the next offset is larger. The last one is the list's length.
    counts: int32 [layers, mask_heads, slots], keys in each prefix of the list that rows may see.
    row_tiles: int32 [T, 8], one row of columns `BEGIN` ... `SPAN` per tile of rows.
    bits: uint8 [bytes], all spans' packed bits. Tile (r, c) of a span's triangle is entry
        e = r (r + 1) / 2 + c of the row at LA_BASE + (layer * mask_heads + head) * LA_STRIDE.
    pages, tiles: the host's copies of the tables. source: the plan this came from.
    """

    source: SparsePlan = field(repr=False)
    pages: PageTable = field(repr=False)
    tiles: TileTable = field(repr=False)
    page_start: torch.Tensor = field(repr=False)
    page_length: torch.Tensor = field(repr=False)
    offsets: torch.Tensor = field(repr=False)
    counts: torch.Tensor = field(repr=False)
    row_tiles: torch.Tensor = field(repr=False)
    bits: torch.Tensor = field(repr=False)
    # The chunk asked for last: every layer of a forward pass asks for the same one.
    _last: dict[tuple[int, int], Chunk] = field(default_factory=dict, repr=False)

    @property
    def layout(self) -> MaskLayout:
        """How bits map to score cells."""
        return self.source.layout

    @property
    def length(self) -> int:
        """Prompt length in tokens; rows behind it are dense."""
        return self.source.length

    @property
    def level(self) -> int:
        """Which of the nested thresholds counts as on."""
        return self.source.level

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.offsets.device

    def chunk(self, row_start: int, row_stop: int) -> Chunk:
        """Return what rows [row_start, row_stop) take; rows behind the plan's length are dense."""
        found = self._last.get((row_start, row_stop))
        if found is None:
            found = self._chunk(row_start, row_stop)
            self._last.clear()
            self._last[row_start, row_stop] = found
        return found

    def _chunk(self, row_start: int, row_stop: int) -> Chunk:
        first, stop = self.tiles.covering(row_start, row_stop)
        span = self.tiles.span[first:stop]
        last = int(span.max(initial=-1))
        list_stop = self.source.spans[last].start if last >= 0 else 0
        if row_start < row_stop:
            first += max(0, row_start - self.length) // TILE
            stop += -(-max(0, row_stop - self.length) // TILE)
        # The last tiles see most keys. Those behind the table are dense.
        number = np.arange(first, stop)[::-1]
        span = np.concatenate((span, np.full(len(number) - len(span), -1)))
        glue = span[::-1] < 0
        order = upload_tables((np.concatenate((number[glue], number[~glue])),), self.device)[0]
        pages = int(self.pages.start.searchsorted(list_stop))
        dense = int(glue.sum())
        return Chunk(row_start, row_stop, first, stop - first, order, dense, list_stop, pages)


def device_plan(plan: SparsePlan, device: torch.device | str) -> DevicePlan:
    """Upload and decode a plan. Raises PlanError when its spans or bits do not fit together."""
    check_plan(plan)
    device = torch.device(device)
    spans = span_table(plan)
    pages, tiles = page_table(plan, spans), tile_table(plan, spans)
    bits = _upload_bits(plan, device)
    page_columns, slot_page, row_tiles = upload_tables(
        (_page_columns(plan, pages), pages.slot_page, _row_columns(plan, tiles)), device
    )
    offsets = _list_offsets(plan.layout, bits, page_columns)
    counts = offsets.index_select(-1, slot_page)
    start, length = page_columns[0], page_columns[1]
    return DevicePlan(plan, pages, tiles, start, length, offsets, counts, row_tiles, bits)


def _list_offsets(
    layout: MaskLayout, bits: torch.Tensor, page_columns: torch.Tensor
) -> torch.Tensor:
    """Return int32 [layers, mask_heads, P + 1]: where each page's keys begin in its list."""
    _, length, byte, stride, shift, threshold = page_columns.unbind()
    rows = layout.layers * layout.mask_heads
    row = torch.arange(rows, device=bits.device, dtype=torch.int32)
    index = row[:, None] * stride + byte  # [rows, P]
    packed = bits.index_select(0, index.view(-1)).view_as(index)
    values = (packed >> shift.to(torch.uint8)) & ((1 << layout.levels) - 1)
    keys = (values >= threshold) * length
    offsets = torch.nn.functional.pad(keys.cumsum(-1, dtype=torch.int32), (1, 0))
    return offsets.view(layout.layers, layout.mask_heads, -1)


def _page_columns(plan: SparsePlan, pages: PageTable) -> Ints:
    """Return [6, P]: start, length, and where a page's value is and what turns it on.

    Its value is at bits[byte + row * stride] >> shift, where row = layer * mask_heads + head, and
    on from `threshold`. Glue reads any byte and is on from 0.
    """
    levels, in_span = plan.layout.levels, pages.span >= 0
    # One more entry, which is what glue's span number -1 finds.
    base = np.array([*_starts([span.ca for span in plan.spans]), 0])
    width = np.array([*(span.ca.shape[-1] for span in plan.spans), 0])
    byte = base[pages.span] + np.where(in_span, pages.index * levels // 8, 0)
    shift = 8 - levels - pages.index * levels % 8
    threshold = np.where(in_span, plan.level, 0)
    return np.stack((pages.start, pages.length, byte, width[pages.span], shift, threshold))


def _row_columns(plan: SparsePlan, tiles: TileTable) -> Ints:
    """Return [T, 8], the columns `BEGIN` ... `SPAN`."""
    marked = [index for index, span in enumerate(plan.spans) if span.la is not None]
    base, stride = np.full(len(plan.spans) + 1, DENSE), np.zeros(len(plan.spans) + 1, dtype=int)
    blobs = [span.la for span in plan.spans if span.la is not None]
    base[marked] = np.array(_starts(blobs), dtype=int) + sum(s.ca.numel() for s in plan.spans)
    stride[marked] = [blob.shape[-1] for blob in blobs]
    columns = np.empty((len(tiles.begin), ROW_COLUMNS), dtype=np.int64)
    columns[:, BEGIN], columns[:, END] = tiles.begin, tiles.end
    columns[:, OWN_START], columns[:, SLOT] = tiles.own_start, tiles.slot
    columns[:, TILE_ROW], columns[:, SPAN] = tiles.tile_row, tiles.span
    columns[:, LA_BASE] = np.where(tiles.tile_row > 0, base[tiles.span], DENSE)
    columns[:, LA_STRIDE] = stride[tiles.span]
    return columns


def _starts(blobs: Sequence[torch.Tensor]) -> list[int]:
    """Return where each blob begins when they are laid one behind the other."""
    sizes = [blob.numel() for blob in blobs]
    return [sum_before - size for sum_before, size in zip(np.cumsum(sizes), sizes, strict=True)]


def _upload_bits(plan: SparsePlan, device: torch.device) -> torch.Tensor:
    """Return uint8 [bytes] on `device`: the CA bits of all spans, then their LA bits.

    Whole blobs are laid one behind the other: joining them per layer and head instead would make
    the host copy a few bytes tens of thousands of times.
    """
    parts = [span.ca.reshape(-1) for span in plan.spans]
    parts += [span.la.reshape(-1) for span in plan.spans if span.la is not None]
    # At least one byte, for glue to read where there is no span.
    parts = parts or [torch.zeros(1, dtype=torch.uint8)]
    if device.type != "cuda" or any(part.is_cuda for part in parts):
        return torch.cat([part.to(device) for part in parts])
    staging = torch.empty(sum(part.numel() for part in parts), dtype=torch.uint8, pin_memory=True)
    return torch.cat(parts, out=staging).to(device, non_blocking=True)


def upload_tables(tables: Sequence[Ints], device: torch.device) -> list[torch.Tensor]:
    """Return int32 tensors of the tables' shapes, views of one buffer uploaded at once."""
    flat = np.concatenate([table.reshape(-1) for table in tables])
    joined = torch.from_numpy(flat.astype(np.int32))
    if device.type == "cuda":
        joined = joined.pin_memory()
    parts = joined.to(device, non_blocking=True).split([table.size for table in tables])
    return [part.view(table.shape) for part, table in zip(parts, tables, strict=True)]
