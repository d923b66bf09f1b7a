"""What kernels are launched with: a line of integers for each tile of up to 128 rows.

Lines are made on the host for the rows of one call. All positions are those of the tensors of that
call, in which the keys and rows of several prompts may lie one behind the other, so a kernel knows
of tiles alone: neither where a prompt begins nor which rows came in earlier calls.

A tile of rows holds pieces: rows that see the same prefix of the list and whose own keys begin at
the same one. Rows of a document's first 128 tokens and its others are different pieces, and where
documents are short, a tile that ended with each piece would be half empty.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sift_index.kernels.plan import TILE
from sift_index.kernels.prompt_tables import EMPTY_SLOT, covering, cut

Lines = NDArray[np.int32]

# BEGIN: key of the tile's first row; the others follow. ROW: the place of that row in q, out of
# range where it came in an earlier call. FIRST, STOP: which of the tile's rows are wanted.
# OWN_START: where the contiguous keys of these rows begin. SLOT: which prefix of the list comes in
# front of them. TILE_ROW: row of the span's own triangle. LA_BASE, LA_STRIDE: where its bits are
# (`DevicePlan.bits`). LEVEL: which of the nested thresholds counts as on.
BEGIN, ROW, FIRST, STOP, OWN_START, SLOT, TILE_ROW, LA_BASE, LA_STRIDE, LEVEL = range(10)
# Of the pieces behind the first one three columns each: the tile's row that a piece begins at, then
# its own `OWN_START` and `SLOT`. A piece that is none begins at `TILE`, and repeats the first.
PIECE = 10
PIECE_COLUMNS = 3
PIECES = 4
ROW_COLUMNS = PIECE + (PIECES - 1) * PIECE_COLUMNS
# `LA_BASE` of tiles that have no bits to read: those of glue and of dense spans, and first tiles,
# whose own keys are the boundary window and the diagonal.
DENSE = -1
# Columns that say the same of a key or a slot, of all pieces of a line.
OWN_STARTS = [OWN_START, *range(PIECE + 1, ROW_COLUMNS, PIECE_COLUMNS)]
SLOTS = [SLOT, *range(PIECE + 2, ROW_COLUMNS, PIECE_COLUMNS)]
PIECE_ROWS = list(range(PIECE, ROW_COLUMNS, PIECE_COLUMNS))
# Tiles are shared where that leaves at most this share of them: what not all rows of a tile see
# takes masks. On an H200 documents of 100 to 150 tokens gain 1.3 to 1.5 x, those of 300 to 700 up
# to 1.08 x, with 11 % fewer tiles; 6 to 8 % fewer lost up to 4 % of 16K tokens.
WORTH = 0.9


class Shift(NamedTuple):
    """How far one prompt's keys, rows, slots and bits lie behind the first ones of a call."""

    keys: int = 0
    rows: int = 0
    slots: int = 0
    bits: int = 0


def share_tiles(pieces: Lines) -> Lines:
    """Return the lines of tiles that hold up to `PIECES` of some pieces each.

    pieces: [n, 19], lines of one piece each, in position order without gaps. Only pieces of spans
    that have no LA bits to read share tiles; the others keep theirs.
    """
    begin, stop = pieces[:, BEGIN], pieces[:, BEGIN] + pieces[:, STOP]
    sharing = (pieces[:, LA_BASE] == DENSE) & (pieces[:, SLOT] != EMPTY_SLOT)
    follows = sharing[1:] & sharing[:-1]
    if not (follows & (pieces[:-1, STOP] < TILE)).any():
        return pieces
    runs = np.concatenate((begin[:1], begin[1:][~follows], stop[-1:]))
    tile_begin, _, _ = cut(runs.astype(np.int64), TILE)
    if len(tile_begin) >= WORTH * len(pieces):
        return pieces
    at = np.union1d(tile_begin, begin)  # where a piece or a tile begins
    piece = np.searchsorted(begin, at, side="right") - 1
    tile = np.searchsorted(tile_begin, at, side="right") - 1
    number = np.arange(len(at)) - np.searchsorted(tile, tile)  # of a piece in its tile
    first = np.flatnonzero(number % PIECES == 0)
    line = np.cumsum(number % PIECES == 0) - 1
    found = pieces[piece[first]]
    found[:, BEGIN] = found[:, ROW] = at[first]
    found[:, STOP] = np.diff(at[first], append=stop[-1])
    # Those that repeat the first piece are as `no_pieces` leaves them.
    found[:, PIECE:] = no_pieces(found)
    more = np.flatnonzero(number % PIECES)
    column = PIECE + (number[more] % PIECES - 1) * PIECE_COLUMNS
    found[line[more], column] = at[more] - found[line[more], BEGIN]
    found[line[more], column + 1] = pieces[piece[more], OWN_START]
    found[line[more], column + 2] = pieces[piece[more], SLOT]
    return found


def no_pieces(lines: Lines) -> Lines:
    """Return [n, 9]: what lines [n, 19] say of further pieces where there are none."""
    none = np.full((len(lines), PIECE_COLUMNS), TILE, dtype=np.int32)
    none[:, 1], none[:, 2] = lines[:, OWN_START], lines[:, SLOT]
    return np.tile(none, PIECES - 1)


class Piece(NamedTuple):
    """Wanted rows [first, stop) of a tile that see the same list prefix, and their own keys."""

    first: int
    stop: int
    own_start: int
    slot: int


def pieces_of(line: Sequence[int]) -> list[Piece]:
    """Return the pieces of a line with a wanted row in them."""
    begins = [0, *(line[at] for at in PIECE_ROWS), TILE]
    found = []
    for number, (own_start, slot) in enumerate(zip(OWN_STARTS, SLOTS, strict=True)):
        first = max(begins[number], line[FIRST])
        stop = min(begins[number + 1], line[STOP])
        if first < stop:
            found.append(Piece(first, stop, line[own_start], line[slot]))
    return found


def call_rows(table: Lines, length: int, row_start: int, row_stop: int) -> Lines:
    """Return the lines of rows [row_start, row_stop) of a prompt whose plan ends at `length`.

    table: [T, 19], the lines of the whole plan. Lines come in position order, as if the prompt were
    alone. Rows behind the plan are dense, and cut from its end.
    """
    begin = table[:, BEGIN]
    known = table[slice(*covering(begin, begin + table[:, STOP], row_start, row_stop))]
    skipped = max(0, row_start - length) // TILE
    count = -(-max(0, row_stop - length) // TILE) - skipped if row_start < row_stop else 0
    behind = np.zeros((count, ROW_COLUMNS), dtype=np.int32)
    behind[:, BEGIN] = length + TILE * np.arange(skipped, skipped + count)
    behind[:, STOP] = TILE
    behind[:, SLOT], behind[:, LA_BASE] = EMPTY_SLOT, DENSE
    behind[:, PIECE:] = no_pieces(behind)
    lines = np.concatenate((known, behind))
    lines[:, ROW] = lines[:, BEGIN] - row_start
    lines[:, FIRST] = np.maximum(-lines[:, ROW], 0)
    lines[:, STOP] = np.minimum(lines[:, STOP], row_stop - lines[:, BEGIN])
    # Only the first and the last tile can have rows that are not wanted.
    for line in (lines[:1], lines[-1:]):
        if len(line) and line[0, LA_BASE] == DENSE:
            line[:] = _without_unwanted(line)
    return lines


def _without_unwanted(line: Lines) -> Lines:
    """Return a line [1, 19] from its first wanted row on, without pieces behind the last one.

    Others may see keys that a chunk has not copied, or more of the list than was compacted.
    """
    first, *others = pieces_of(line[0].tolist())
    found = line.copy()
    found[:, [BEGIN, ROW]] += first.first
    found[:, STOP] -= first.first
    found[:, [FIRST, OWN_START, SLOT]] = 0, first.own_start, first.slot
    found[:, PIECE:] = no_pieces(found)
    for number, piece in enumerate(others):
        at = PIECE + number * PIECE_COLUMNS
        found[:, at : at + PIECE_COLUMNS] = piece.first - first.first, *piece[2:]
    return found


def in_launch_order(calls: Sequence[Lines], shifts: Sequence[Shift]) -> tuple[Lines, int]:
    """Return the lines of several prompts, dear ones first, and how many of them are dense.

    Dense tiles come first. Of either kind those come first that lie deepest in their prompt, since
    they see most keys, so that the last to run are short.
    """
    lines = np.concatenate(calls)
    dense = lines[:, SLOT] == EMPTY_SLOT
    order = np.lexsort((-lines[:, BEGIN], ~dense))
    shifted = np.concatenate([_shifted(*pair) for pair in zip(calls, shifts, strict=True)])
    return shifted.take(order, 0), int(dense.sum())


def _shifted(lines: Lines, shift: Shift) -> Lines:
    by = np.zeros(ROW_COLUMNS, dtype=np.int32)
    by[[BEGIN, *OWN_STARTS]], by[ROW], by[SLOTS] = shift.keys, shift.rows, shift.slots
    found = lines + by
    found[:, LA_BASE] += np.where(found[:, LA_BASE] == DENSE, 0, shift.bits).astype(np.int32)
    return found
