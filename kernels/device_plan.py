"""A whole sparse plan on the device: every layer decoded at once, and the host never waits.

The host uploads one buffer, the packed bits of all spans and the integer tables of the prompt.
A few torch operations turn the CA bits into list offsets; the LA bits stay packed, since a kernel
reads one of them per 128 x 128 tile. Nothing here reads a device value back, so the same code
decodes on a CPU, on a GPU, and (for shapes alone) on the meta device.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from sift_index.formats.errors import PlanError
from sift_index.kernels import row_tiles as columns
from sift_index.kernels.plan import MaskLayout, SparsePlan
from sift_index.kernels.prompt_tables import (
    Ints,
    PageTable,
    TileTable,
    check_plan,
    page_table,
    span_table,
    tile_table,
)
from sift_index.kernels.row_tiles import (
    Lines,
    Shift,
    call_rows,
    in_launch_order,
    no_pieces,
    share_tiles,
)
from sift_index.kernels.work import Work

# What is uploaded: integers, as int32, or bytes.
Table: TypeAlias = Ints | Lines | NDArray[np.uint8]

# Tables say in int32 where a row of bits begins.
LARGEST_BITS = 2**31 - 1
# Bytes at a multiple of which every table begins, so that kernels see pointers of one kind.
ALIGNMENT = 16


@dataclass(frozen=True, eq=False)
class Chunk:
    """What rows [row_start, row_stop) of a prompt take; the same for all layers.

    first_own: the first key of their own that one of its tiles sees, 0 where one is of glue.
    list_stop: the key in front of which every list prefix of these rows ends, so that later keys
    need no compaction. pages: how many pages begin in front of it.
    work: what kernels read of all this.
    """

    row_start: int
    row_stop: int
    first_own: int
    list_stop: int
    pages: int
    work: Work = field(repr=False)


@dataclass(frozen=True, eq=False)
class DevicePlan:
    """A `SparsePlan` as tensors on one device, for all layers.

    One key list per layer and mask head: glue and selected pages in position order.
    page_start, page_length: int32 [P], the keys of every page of the prompt.
    offsets: int32 [layers, mask_heads, P + 1], where each page's keys begin in the list; a page is
        on where the next offset is larger. The last one is the list's length.
    counts: int32 [layers, mask_heads, slots], keys in each prefix of the list that rows may see.
    starts: int32 [layers, mask_heads, slots], 0: where those prefixes begin in the list.
    bits: uint8 [bytes], all spans' packed bits. Tile (r, c) of a span's triangle is entry
        e = r (r + 1) / 2 + c of the row at LA_BASE + (layer * mask_heads + head) * LA_STRIDE.
    row_tiles: [tiles, 19] on the host, the lines of the whole prompt (`row_tiles`).
    pages, tiles: the host's tables. source: the plan this came from.
    """

    source: SparsePlan = field(repr=False)
    pages: PageTable = field(repr=False)
    tiles: TileTable = field(repr=False)
    page_start: torch.Tensor = field(repr=False)
    page_length: torch.Tensor = field(repr=False)
    offsets: torch.Tensor = field(repr=False)
    counts: torch.Tensor = field(repr=False)
    starts: torch.Tensor = field(repr=False)
    bits: torch.Tensor = field(repr=False)
    row_tiles: Lines = field(repr=False)
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

    def for_another_stream(self) -> "DevicePlan":
        """Return the same plan with chunks of its own, whose tables another stream uploads."""
        return replace(self, _last={})

    def call_rows(self, row_start: int, row_stop: int) -> Lines:
        """Return the lines of rows [row_start, row_stop), in position order, on the host."""
        return call_rows(self.row_tiles, self.length, row_start, row_stop)

    def list_stop(self, row_start: int, row_stop: int) -> int:
        """Return the key in front of which all list prefixes of these rows end."""
        first, stop = self.tiles.covering(row_start, row_stop)
        last = int(self.tiles.span[first:stop].max(initial=-1))
        return self.source.spans[last].start if last >= 0 else 0

    def pages_before(self, key: int) -> int:
        """Return how many pages begin in front of a key."""
        return int(self.pages.start.searchsorted(key))

    def _chunk(self, row_start: int, row_stop: int) -> Chunk:
        lines, dense = in_launch_order([self.call_rows(row_start, row_stop)], [Shift()])
        (on_device,) = upload_tables((lines,), self.device)
        return self._with_lines(lines, on_device, dense, row_start, row_stop)

    def _with_lines(
        self, lines: Lines, row_tiles: torch.Tensor, dense: int, row_start: int, row_stop: int
    ) -> Chunk:
        """Return the chunk of rows with these lines, which are row_tiles on the device."""
        first_own = int(lines[:, columns.OWN_STARTS].min(initial=row_start))
        list_stop = self.list_stop(row_start, row_stop)
        pages = self.pages_before(list_stop)
        work = Work(
            layout=self.layout,
            page_start=self.page_start[:pages],
            page_length=self.page_length[:pages],
            offsets=self.offsets[..., : pages + 1],
            counts=self.counts,
            starts=self.starts,
            row_tiles=row_tiles,
            bits=self.bits,
            dense=dense,
            capacity=list_stop,
            keys=row_stop,
        )
        return Chunk(row_start, row_stop, first_own, list_stop, pages, work)


def device_plan(plan: SparsePlan, device: torch.device | str) -> DevicePlan:
    """Upload and decode a plan. Raises PlanError when its spans or bits do not fit together.

    Rows of the whole prompt, as prefills ask for them, go along in the one upload.
    """
    check_plan(plan)
    device = torch.device(device)
    spans = span_table(plan)
    pages, tiles = page_table(plan, spans), tile_table(plan, spans)
    places, tests = _page_columns(plan, pages)
    rows = np.arange(plan.layout.layers * plan.layout.mask_heads)
    row_tiles = share_tiles(_lines(plan, tiles))
    whole = (0, plan.length)
    lines, dense = in_launch_order([row_tiles], [Shift()])
    tables: list[Table] = [places, rows, pages.slot_page, lines, tests]
    blobs = _blobs(plan)
    require_addressable(sum(blob.numel() for blob in blobs))
    if any(blob.is_cuda for blob in blobs):
        bits = torch.cat([blob.to(device).reshape(-1) for blob in blobs])
        uploaded = upload(tables, device)
    else:
        joined = np.concatenate([blob.numpy().reshape(-1) for blob in blobs])
        *uploaded, bits = upload([*tables, joined], device)
    page_place, row, slot_page, on_device, page_test = uploaded
    offsets = _list_offsets(plan.layout, bits, page_place, row, page_test)
    counts = offsets.index_select(-1, slot_page)
    place, lists = (page_place[0], page_place[1]), (counts, torch.zeros_like(counts))
    made = DevicePlan(plan, pages, tiles, *place, offsets, *lists, bits, row_tiles)
    made._last[whole] = made._with_lines(lines, on_device, dense, *whole)
    return made


def require_addressable(bits: int) -> None:
    """Raise PlanError for more bytes of packed bits than tables can point into."""
    if bits > LARGEST_BITS:
        raise PlanError(
            f"expected at most {LARGEST_BITS:,} bytes of packed bits in one call, found {bits:,}; "
            "run fewer or shorter prompts at once"
        )


def _list_offsets(
    layout: MaskLayout,
    bits: torch.Tensor,
    places: torch.Tensor,
    rows: torch.Tensor,
    tests: torch.Tensor,
) -> torch.Tensor:
    """Return int32 [layers, mask_heads, P + 1]: where each page's keys begin in its list.

    places, tests: as `_page_columns` says. rows: int32 [layers * mask_heads], their numbers. Few
    operations, because on a GPU the time is that of starting them.
    """
    _, length, byte, stride = places
    index: torch.Tensor = torch.addcmul(byte, rows[:, None], stride)  # [rows, P]
    packed = bits.index_select(0, index.view(-1)).view_as(index)
    keys: torch.Tensor = ((packed & tests[0]) >= tests[1]) * length
    offsets = keys.new_empty(len(rows), keys.shape[1] + 1)
    offsets[:, 0] = 0
    torch.cumsum(keys, -1, dtype=torch.int32, out=offsets[:, 1:])
    return offsets.view(layout.layers, layout.mask_heads, -1)


def _page_columns(plan: SparsePlan, pages: PageTable) -> tuple[Ints, NDArray[np.uint8]]:
    """Return int64 [4, P], start, length and where a page's byte is, and uint8 [2, P], its test.

    Its byte is at bits[byte + row * stride], where row = layer * mask_heads + head. The page is on
    where the bits of the first test reach the second one. Glue reads any byte, none of its bits,
    and is on from 0.
    """
    levels, in_span = plan.layout.levels, pages.span >= 0
    # One more entry, which is what glue's span number -1 finds.
    base = np.array([*_starts([span.ca for span in plan.spans]), 0])
    width = np.array([*(span.ca.shape[-1] for span in plan.spans), 0])
    place = pages.index * levels  # of glue 0
    shift = 8 - levels - (place & 7)
    # No bits reach 255, so a level that is not stored is off.
    tests = np.minimum(np.array([[(1 << levels) - 1], [plan.level]]) << shift, 255)
    byte = base.take(pages.span) + (place >> 3)
    places = np.stack((pages.start, pages.length, byte, width.take(pages.span)))
    return places, (tests * in_span).astype(np.uint8)


def _lines(plan: SparsePlan, tiles: TileTable) -> Lines:
    """Return [T, 19], a line of one piece for each tile of the whole prompt."""
    marked = [index for index, span in enumerate(plan.spans) if span.la is not None]
    # One more entry, which is what glue's span number -1 finds.
    base, stride = np.full(len(plan.spans) + 1, columns.DENSE), np.zeros(len(plan.spans) + 1, int)
    blobs = [span.la for span in plan.spans if span.la is not None]
    base[marked] = np.array(_starts(blobs), dtype=int) + sum(s.ca.numel() for s in plan.spans)
    stride[marked] = [blob.shape[-1] for blob in blobs]
    lines = np.empty((len(tiles.begin), columns.ROW_COLUMNS), dtype=np.int32)
    lines[:, columns.BEGIN], lines[:, columns.ROW] = tiles.begin, tiles.begin
    lines[:, columns.FIRST], lines[:, columns.STOP] = 0, tiles.end - tiles.begin
    lines[:, columns.OWN_START], lines[:, columns.SLOT] = tiles.own_start, tiles.slot
    lines[:, columns.TILE_ROW] = tiles.tile_row
    lines[:, columns.LA_BASE] = np.where(tiles.tile_row > 0, base[tiles.span], columns.DENSE)
    lines[:, columns.LA_STRIDE] = stride[tiles.span]
    lines[:, columns.LEVEL] = plan.level
    lines[:, columns.PIECE :] = no_pieces(lines)
    return lines


def _starts(blobs: Sequence[torch.Tensor]) -> list[int]:
    """Return where each blob begins when they are laid one behind the other."""
    sizes = [blob.numel() for blob in blobs]
    return [sum_before - size for sum_before, size in zip(np.cumsum(sizes), sizes, strict=True)]


def _blobs(plan: SparsePlan) -> list[torch.Tensor]:
    """Return uint8 tensors: the CA bits of all spans, then their LA bits.

    Whole blobs are laid one behind the other: joining them per layer and head instead would make
    the host copy a few bytes tens of thousands of times.
    """
    blobs = [span.ca for span in plan.spans]
    blobs += [span.la for span in plan.spans if span.la is not None]
    # At least one byte, for glue to read where there is no span.
    return blobs or [torch.zeros(1, dtype=torch.uint8)]


def upload_tables(tables: Sequence[Ints | Lines], device: torch.device) -> list[torch.Tensor]:
    """Return int32 tensors of the tables' shapes, views of one buffer uploaded at once."""
    return upload(tables, device)


def upload(arrays: Sequence[Table], device: torch.device) -> list[torch.Tensor]:
    """Return int32 tensors of integer arrays and uint8 ones of bytes, of the arrays' shapes.

    They are views of one buffer, filled where a GPU can fetch it by itself and uploaded in one
    copy that nobody waits for. Each begins at a multiple of `ALIGNMENT` bytes.
    """
    kinds = [np.dtype(np.uint8 if array.dtype == np.uint8 else np.int32) for array in arrays]
    pieces, size = [], 0
    for array, kind in zip(arrays, kinds, strict=True):
        pieces.append(slice(size, size + array.size * kind.itemsize))
        size = -(-pieces[-1].stop // ALIGNMENT) * ALIGNMENT
    staging = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    host = staging.numpy()
    for piece, array, kind in zip(pieces, arrays, kinds, strict=True):
        host[piece].view(kind).reshape(array.shape)[...] = array
    data = staging.to(device, non_blocking=True)
    return [
        data[piece].view(torch.uint8 if kind == np.uint8 else torch.int32).view(array.shape)
        for piece, array, kind in zip(pieces, arrays, kinds, strict=True)
    ]
