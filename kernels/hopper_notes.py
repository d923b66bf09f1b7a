"""What the warps of the Hopper kernel tell each other of an item: numbers in shared memory.

The scheduler writes them, the producer and both warpgroups read them. Import this module only where
Triton's Gluon is installed.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from sift_index.kernels import row_tiles as columns
from sift_index.kernels.plan import TILE

ROWS = gl.constexpr(TILE)
HALF = gl.constexpr(TILE // 2)  # rows of a warpgroup
KEYS = gl.constexpr(TILE)  # keys of a block: a block of own keys is one LA tile
PIECES = gl.constexpr(columns.PIECES)

# What the scheduler tells of an item, a number each. HEAD: of the queries, below 0 behind the last
# item. TILE_AT: the place in q of the tile's first row; FIRST_ROW, STOP_ROW: which are wanted.
# FIRST_KEY: of the diagonal; LIST_START: where the head's list begins. FRONT, TAILS: masked blocks
# of own keys, and of the list; HOT: blocks without a mask; WHOLE: whole tiles of own keys, LISTED:
# whole blocks of the list. LA_AT: where the layer's and head's bits of the span are, below 0 where
# all tiles are on; LA_ROW: which row of them; LA_LEVEL: from which level on a tile is on.
# SHARED: whether there are further pieces. LIMITS: of each piece, the row it begins at (not noted
# of the first one: 0), its first own key, from the tile's first row on, and the listed keys it
# sees, from the first masked one on.
(
    HEAD, KV_HEAD, MASK_HEAD, TILE_AT, FIRST_ROW, STOP_ROW, FIRST_KEY, LIST_START,
    FRONT, TAILS, HOT, WHOLE, LISTED, LA_AT, LA_ROW, LA_LEVEL, SHARED, LIMITS,
) = map(gl.constexpr, range(18))  # fmt: skip
NOTES = gl.constexpr(LIMITS.value + 3 * columns.PIECES)


@gluon.jit  # type: ignore[untyped-decorator]
def note(notes, place, value, layout: gl.constexpr):  # type: ignore[no-untyped-def]
    """Write down a number. A word for each lane, since every lane stores."""
    notes.index(place).store(gl.full([32], value, gl.int32, layout=layout))


@gluon.jit  # type: ignore[untyped-decorator]
def read(notes, place, layout: gl.constexpr):  # type: ignore[no-untyped-def]
    """Return a number that was written down."""
    return gl.max(notes.index(place).slice(0, 1).load(layout), 0)


@gluon.jit  # type: ignore[untyped-decorator]
def read_limits(notes, place, rows, layout: gl.constexpr):  # type: ignore[no-untyped-def]
    """Return of each row its first own key and the listed keys it sees, as they are noted."""
    own = read(notes, place + LIMITS + 1, layout)
    listed = read(notes, place + LIMITS + 2, layout)
    own_from = gl.full([HALF], own, gl.int32, layout=rows.type.layout)
    listed_to = gl.full([HALF], listed, gl.int32, layout=rows.type.layout)
    if read(notes, place + SHARED, layout) > 0:
        for piece in gl.static_range(1, PIECES):
            behind = rows >= read(notes, place + LIMITS + 3 * piece, layout)
            own = read(notes, place + LIMITS + 3 * piece + 1, layout)
            listed = read(notes, place + LIMITS + 3 * piece + 2, layout)
            own_from = gl.where(behind, own, own_from)
            listed_to = gl.where(behind, listed, listed_to)
    return own_from, listed_to
