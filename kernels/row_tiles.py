"""What kernels are launched with: a line of integers for each tile of up to 128 rows.

Lines are made on the host for the rows of one call. All positions are those of the tensors of that
call, in which the keys and rows of several prompts may lie one behind the other, so a kernel knows
of tiles alone: neither where a prompt begins nor which rows came in earlier calls.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sift_index.kernels.plan import TILE
from sift_index.kernels.prompt_tables import EMPTY_SLOT, TileTable

Lines = NDArray[np.int32]

# BEGIN: key of the tile's first row; the others follow. ROW: the place of that row in q, out of
# range where it came in an earlier call. FIRST, STOP: which of the tile's rows are wanted.
# OWN_START: where the contiguous keys of these rows begin. SLOT: which prefix of the list comes in
# front of them. TILE_ROW: row of the span's own triangle. LA_BASE, LA_STRIDE: where its bits are
# (`DevicePlan.bits`). LEVEL: which of the nested thresholds counts as on.
BEGIN, ROW, FIRST, STOP, OWN_START, SLOT, TILE_ROW, LA_BASE, LA_STRIDE, LEVEL = range(10)
ROW_COLUMNS = 10
# `LA_BASE` of tiles that have no bits to read: those of glue and of dense spans, and first tiles,
# whose own keys are the boundary window and the diagonal.
DENSE = -1


class Shift(NamedTuple):
    """How far one prompt's keys, rows, slots and bits lie behind the first ones of a call."""

    keys: int = 0
    rows: int = 0
    slots: int = 0
    bits: int = 0


class CallRows(NamedTuple):
    """Some rows of one prompt: their tiles in position order.

    lines: [n, 10], as if the prompt were alone. dense: bool [n], rows that see all keys in front.
    first_tile: the number of the first tile, counted on behind the plan's table.
    """

    lines: Lines
    dense: NDArray[np.bool_]
    first_tile: int


def call_rows(
    table: Lines, tiles: TileTable, length: int, row_start: int, row_stop: int
) -> CallRows:
    """Return the lines of rows [row_start, row_stop) of a prompt whose plan ends at `length`.

    table: [T, 10], the lines of the whole plan. Rows behind it are dense, and cut from its end.
    """
    first, stop = tiles.covering(row_start, row_stop)
    known = table[first:stop]
    skipped = max(0, row_start - length) // TILE
    count = -(-max(0, row_stop - length) // TILE) - skipped if row_start < row_stop else 0
    behind = np.zeros((count, ROW_COLUMNS), dtype=np.int32)
    behind[:, BEGIN] = length + TILE * np.arange(skipped, skipped + count)
    behind[:, STOP] = TILE
    behind[:, SLOT], behind[:, LA_BASE] = EMPTY_SLOT, DENSE
    lines = np.concatenate((known, behind))
    lines[:, ROW] = lines[:, BEGIN] - row_start
    lines[:, FIRST] = np.maximum(-lines[:, ROW], 0)
    lines[:, STOP] = np.minimum(lines[:, STOP], row_stop - lines[:, BEGIN])
    dense = np.concatenate((tiles.span[first:stop] < 0, np.ones(count, dtype=bool)))
    return CallRows(lines, dense, first + skipped if count else first)


def in_launch_order(calls: Sequence[CallRows], shifts: Sequence[Shift]) -> tuple[Lines, int]:
    """Return the lines of several prompts, dear ones first, and how many of them are dense.

    Dense tiles come first. Of either kind those come first that lie deepest in their prompt, since
    they see most keys, so that the last to run are short.
    """
    lines = np.concatenate([one.lines for one in calls])
    dense = np.concatenate([one.dense for one in calls])
    order = np.lexsort((-lines[:, BEGIN], ~dense))
    shifted = np.concatenate([_shifted(*pair) for pair in zip(calls, shifts, strict=True)])
    return shifted.take(order, 0), int(dense.sum())


def _shifted(rows: CallRows, shift: Shift) -> Lines:
    by = np.zeros(ROW_COLUMNS, dtype=np.int32)
    by[[BEGIN, OWN_START]], by[ROW], by[SLOT] = shift.keys, shift.rows, shift.slots
    found = rows.lines + by
    found[:, LA_BASE] += np.where(found[:, LA_BASE] == DENSE, 0, shift.bits).astype(np.int32)
    return found
