"""The scheduler of the Hopper kernel: which item comes next, and what is to be known of it.

A warp of its own, so that nothing waits while it divides and looks things up. Import this module
only where Triton's Gluon is installed.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from sift_index.kernels import row_tiles as columns
from sift_index.kernels.hopper_notes import (
    FIRST_KEY,
    FIRST_ROW,
    FRONT,
    HEAD,
    HOT,
    KEYS,
    KV_HEAD,
    LA_AT,
    LA_LEVEL,
    LA_ROW,
    LIMITS,
    LIST_START,
    LISTED,
    MASK_HEAD,
    NOTES,
    PIECES,
    ROWS,
    SHARED,
    STOP_ROW,
    TAILS,
    TILE_AT,
    WHOLE,
    note,
)

BEGIN = gl.constexpr(columns.BEGIN)
ROW = gl.constexpr(columns.ROW)
FIRST = gl.constexpr(columns.FIRST)
STOP = gl.constexpr(columns.STOP)
OWN_START = gl.constexpr(columns.OWN_START)
SLOT = gl.constexpr(columns.SLOT)
TILE_ROW = gl.constexpr(columns.TILE_ROW)
LA_BASE = gl.constexpr(columns.LA_BASE)
LA_STRIDE = gl.constexpr(columns.LA_STRIDE)
LEVEL = gl.constexpr(columns.LEVEL)
PIECE = gl.constexpr(columns.PIECE)
PIECE_COLUMNS = gl.constexpr(columns.PIECE_COLUMNS)
COLUMNS = gl.constexpr(columns.ROW_COLUMNS)
# Elements of K and V, 24 MiB in 16 bits, that the L2 cache holds beside everything else.
SECTION = gl.constexpr(12 << 20)


@gluon.jit  # type: ignore[untyped-decorator]
def _section(keys, heads_together, heads, D: gl.constexpr):  # type: ignore[no-untyped-def]
    """Return how many heads' keys the L2 cache holds; `heads_together` share theirs."""
    return gl.minimum(heads, (SECTION // (2 * D) // (keys + 1) + 1) * heads_together)


@gluon.jit  # type: ignore[untyped-decorator]
def _item(  # type: ignore[no-untyped-def]
    place, row_tiles, tiles, dense, keys, listed_keys, heads, heads_per_kv, heads_per_mask,
    D: gl.constexpr,
):  # fmt: skip
    """Return an item's query head and where the line of its tile is.

    Dense tiles come first, since they are the dearest. Of either kind a section of heads comes at
    a time, and inside it the dear tiles of all its heads first, so that the last to end are cheap.
    """
    behind = place - dense * heads
    each = gl.where(behind < 0, dense, tiles - dense)
    place = gl.where(behind < 0, place, behind)
    # Worked out for each item: known before the loop, both sections would take a register.
    seen = gl.where(behind < 0, keys, listed_keys)
    section = _section(seen, gl.where(behind < 0, heads_per_kv, heads_per_mask), heads, D)
    first = place // (section * each) * section
    together = gl.minimum(section, heads - first)
    place -= first * each
    head = first + place % together
    return head, row_tiles + (gl.where(behind < 0, 0, dense) + place // together) * COLUMNS


@gluon.jit
def tiles_on(  # type: ignore[no-untyped-def]
    tile_column, tile_row, packed, level, levels, neighbour
):
    """Return which tiles of a row of LA bits are on; `packed` is where the span's bits begin."""
    bit = (tile_row * (tile_row + 1) // 2 + tile_column) * levels
    inside = tile_column < tile_row
    value = gl.load(packed + bit // 8, mask=inside, other=0).to(gl.int32)
    on = ((value >> (8 - levels - bit % 8)) & ((1 << levels) - 1)) >= level
    # The one left of the diagonal is on where the layout says so.
    on = on | (tile_column + neighbour == tile_row)
    return on & inside


@gluon.jit  # type: ignore[untyped-decorator]
def _piece(entry, counts, piece: gl.constexpr):  # type: ignore[no-untyped-def]
    """Return the row a piece begins at, its first own key and how many listed ones it sees."""
    if piece == 0:
        return 0, gl.load(entry + OWN_START), gl.load(counts + gl.load(entry + SLOT))
    here = entry + PIECE + (piece - 1) * PIECE_COLUMNS
    return gl.load(here), gl.load(here + 1), gl.load(counts + gl.load(here + 2))


@gluon.jit
def _extremes(entry, counts, shared):  # type: ignore[no-untyped-def]
    """Return the first and the last of the pieces' first own keys, the fewest and most listed."""
    _, first, few = _piece(entry, counts, 0)
    last, most = first, few
    if shared:
        for piece in gl.static_range(1, PIECES):
            _, own_start, count = _piece(entry, counts, piece)
            first = gl.minimum(first, own_start)
            last = gl.maximum(last, own_start)
            few = gl.minimum(few, count)
            most = gl.maximum(most, count)
    return first, last, few, most


@gluon.jit  # type: ignore[untyped-decorator]
def _note_limits(  # type: ignore[no-untyped-def]
    notes, place, entry, counts, begin, listed, piece: gl.constexpr, layout: gl.constexpr
):
    at, own_start, count = _piece(entry, counts, piece)
    if piece > 0:
        note(notes, place + LIMITS + 3 * piece, at, layout)
    note(notes, place + LIMITS + 3 * piece + 1, own_start - begin, layout)
    note(notes, place + LIMITS + 3 * piece + 2, count - listed, layout)


@gluon.jit  # type: ignore[untyped-decorator]
def schedule(  # type: ignore[no-untyped-def]
    taken, row_tiles, counts, starts, bits, notes, noted, finished,
    tiles, dense, keys, mask_row, slots, levels, neighbour, heads, heads_per_kv, heads_per_mask,
    D: gl.constexpr,
):  # fmt: skip
    """The scheduler warp: take an item once the one before it is begun, and note what it is."""
    note_layout: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    bits_layout: gl.constexpr = gl.BlockedLayout([4], [32], [1], [0])
    tile_columns = gl.arange(0, KEYS, layout=bits_layout)
    # The end of the last prefix of the first list stands for all.
    listed_keys = gl.load(starts + slots - 1) + gl.load(counts + slots - 1)
    number = 0
    slot = 0
    place = gl.program_id(0)
    while place < tiles * heads:
        head, entry = _item(
            place, row_tiles, tiles, dense, keys, listed_keys, heads, heads_per_kv, heads_per_mask,
            D,
        )  # fmt: skip
        kv_head = head // heads_per_kv
        mask_head = head // heads_per_mask
        begin = gl.load(entry + BEGIN)  # own keys lie in front of it
        tile_row = gl.load(entry + TILE_ROW)
        la_base = gl.load(entry + LA_BASE)
        la_stride = gl.load(entry + LA_STRIDE)
        level = gl.load(entry + LEVEL)
        of_head = counts + mask_head * slots
        start = gl.load(starts + mask_head * slots + gl.load(entry + SLOT))
        shared = gl.load(entry + PIECE) < ROWS
        first, last, few, most = _extremes(entry, of_head, shared)
        whole = gl.maximum(begin - last, 0) // KEYS
        front = (begin - first + KEYS - 1) // KEYS - whole
        listed = few // KEYS
        tails = (most + KEYS - 1) // KEYS - listed
        # Below 2^31, as `device_plan.require_addressable` says.
        la_at = gl.where(la_base < 0, -1, la_base + (mask_row + mask_head) * la_stride)
        hot = listed + whole
        if la_at >= 0:
            hot = listed
            for some in range(0, tile_row, KEYS):
                column = some + tile_columns
                on = tiles_on(column, tile_row, bits + la_at, level, levels, neighbour)
                hot += gl.sum(on.to(gl.int32), 0)

        # The producer sees what is written in front of the arrival below, and the warpgroups too,
        # which wait for what the producer does behind it.
        here = slot * NOTES
        note(notes, here + HEAD, head, note_layout)
        note(notes, here + KV_HEAD, kv_head, note_layout)
        note(notes, here + MASK_HEAD, mask_head, note_layout)
        note(notes, here + TILE_AT, gl.load(entry + ROW), note_layout)
        note(notes, here + FIRST_ROW, gl.load(entry + FIRST), note_layout)
        note(notes, here + STOP_ROW, gl.load(entry + STOP), note_layout)
        note(notes, here + FIRST_KEY, begin, note_layout)
        note(notes, here + LIST_START, start, note_layout)
        note(notes, here + FRONT, front, note_layout)
        note(notes, here + TAILS, tails, note_layout)
        note(notes, here + HOT, hot, note_layout)
        note(notes, here + WHOLE, whole, note_layout)
        note(notes, here + LISTED, listed, note_layout)
        note(notes, here + LA_AT, la_at, note_layout)
        note(notes, here + LA_ROW, tile_row, note_layout)
        note(notes, here + LA_LEVEL, level, note_layout)
        note(notes, here + SHARED, shared.to(gl.int32), note_layout)
        masked_from = listed * KEYS
        _note_limits(notes, here, entry, of_head, begin, masked_from, 0, note_layout)
        if shared:
            for piece in gl.static_range(1, PIECES):
                _note_limits(notes, here, entry, of_head, begin, masked_from, piece, note_layout)
        mbarrier.arrive(noted.index(slot))

        number += 1
        slot = number & 1
        mbarrier.wait(finished.index(slot), ((number >> 1) & 1) ^ 1)
        place = gl.num_programs(0) + gl.atomic_add(taken, 1, sem="relaxed")

    note(notes, slot * NOTES + HEAD, -1, note_layout)
    mbarrier.arrive(noted.index(slot))
