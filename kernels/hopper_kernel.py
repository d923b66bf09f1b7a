"""Sparse-prefill attention in Gluon for Hopper (sm_90a): the device code.

One persistent program per multiprocessor. A producer warp fetches 128-key blocks by TMA, two
warpgroups of 64 rows each multiply and exponentiate. An item of work is one tile of rows and one
query head; its blocks come in an order that keeps masks out of the hot loop:

1. the diagonal, at the tile's own rows (causal mask),
2. the front of its own keys: what is left of a block, or what only some of its rows see,
3. the end of its prefix of the compacted list, likewise,
4. whole blocks of its own keys, of tiles that are on, then whole blocks of the list.

Rows of several documents may share a tile (`row_tiles`): each row has limits of its own for 1-3.

Import this module only where Triton's Gluon is installed.
"""

import math

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from sift_index.kernels import row_tiles as columns
from sift_index.kernels.plan import TILE

ROWS = gl.constexpr(TILE)
HALF = gl.constexpr(TILE // 2)  # rows of a warpgroup
KEYS = gl.constexpr(TILE)  # keys of a block: a block of own keys is one LA tile
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
PIECES = gl.constexpr(columns.PIECES)
COLUMNS = gl.constexpr(columns.ROW_COLUMNS)
LN2 = gl.constexpr(math.log(2))
# Elements of K and V, 24 MiB in 16 bits, that the L2 cache holds beside everything else.
SECTION = gl.constexpr(12 << 20)
# A row's sum as the threads hold it: four of them, in a tensor [64, 4].
SHARES = gl.constexpr(
    gl.DistributedLinearLayout(
        [[8, 0]], [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [HALF.value, 4]
    )
)

# What the producer tells the warpgroups of an item, a number each. FRONT, TAILS: masked blocks of
# own keys, and of the list; HOT: blocks without a mask, WHOLE of them own keys. SHARED: whether
# there are further pieces. LIMITS: of each piece, the row it begins at, its first own key, from the
# tile's first row on, and the listed keys it sees, from the first masked one on.
HEAD, TILE_AT, FIRST_ROW, STOP_ROW, FRONT, TAILS, HOT, WHOLE, SHARED, LIMITS = map(
    gl.constexpr, range(10)
)
NOTES = gl.constexpr(9 + 3 * columns.PIECES)

# Registers of a thread: the second warpgroup's and the producer's; the first gets the rest.
CONSUMER_REGISTERS = gl.constexpr(232)
PRODUCER_REGISTERS = gl.constexpr(40)

# Host integers that change with every prompt and chunk: specialised, each would compile anew.
VARYING = [
    "tiles",
    "dense",
    "keys",
    "lse_rows",
    "mask_row",
    "slots",
    "levels",
    "neighbour",
    "heads",
    "heads_per_kv",
    "heads_per_mask",
]


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
def _tiles_on(  # type: ignore[no-untyped-def]
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
def _note(notes, place, value, layout: gl.constexpr):  # type: ignore[no-untyped-def]
    # A word for each lane, since every lane stores.
    notes.index(place).store(gl.full([32], value, gl.int32, layout=layout))


@gluon.jit  # type: ignore[untyped-decorator]
def _read(notes, place, layout: gl.constexpr):  # type: ignore[no-untyped-def]
    return gl.max(notes.index(place).slice(0, 1).load(layout), 0)


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
    _note(notes, place + LIMITS + 3 * piece, at, layout)
    _note(notes, place + LIMITS + 3 * piece + 1, own_start - begin, layout)
    _note(notes, place + LIMITS + 3 * piece + 2, count - listed, layout)


@gluon.jit  # type: ignore[untyped-decorator]
def _read_limits(notes, place, rows, layout: gl.constexpr):  # type: ignore[no-untyped-def]
    """Return of each row its first own key and the listed keys it sees, as they are noted."""
    own_from = gl.full([HALF], 0, gl.int32, layout=rows.type.layout) + _read(
        notes, place + LIMITS + 1, layout
    )
    listed_to = gl.full([HALF], 0, gl.int32, layout=rows.type.layout) + _read(
        notes, place + LIMITS + 2, layout
    )
    if _read(notes, place + SHARED, layout) > 0:
        for piece in gl.static_range(1, PIECES):
            behind = rows >= _read(notes, place + LIMITS + 3 * piece, layout)
            own = _read(notes, place + LIMITS + 3 * piece + 1, layout)
            listed = _read(notes, place + LIMITS + 3 * piece + 2, layout)
            own_from = gl.where(behind, own, own_from)
            listed_to = gl.where(behind, listed, listed_to)
    return own_from, listed_to


@gluon.jit  # type: ignore[untyped-decorator]
def _fetch(  # type: ignore[no-untyped-def]
    k, v, head, key, block, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Copy one block of K and V to the ring; returns the number of the next block."""
    BYTES: gl.constexpr = k.block_type.nbytes
    stage = block % STAGES
    phase = ((block // STAGES) & 1) ^ 1
    mbarrier.wait(k_empty.index(stage), phase)
    mbarrier.expect(k_full.index(stage), BYTES)
    tma.async_copy_global_to_shared(k, [head, key, 0], k_full.index(stage), k_tiles.index(stage))
    mbarrier.wait(v_empty.index(stage), phase)
    mbarrier.expect(v_full.index(stage), BYTES)
    tma.async_copy_global_to_shared(v, [head, key, 0], v_full.index(stage), v_tiles.index(stage))
    return block + 1


@gluon.jit  # type: ignore[untyped-decorator]
def _produce(  # type: ignore[no-untyped-def]
    q, k, v, k_list, v_list, taken, row_tiles, counts, starts, bits,
    notes, q_tile, k_tiles, v_tiles, q_full, q_empty, k_full, k_empty, v_full, v_empty,
    tiles, dense, keys, mask_row, slots, levels, neighbour, heads, heads_per_kv, heads_per_mask,
    STAGES: gl.constexpr,
):  # fmt: skip
    """The producer warp: fetch every item's queries and blocks, as far ahead as there is room."""
    Q_BYTES: gl.constexpr = q.block_type.nbytes
    note_layout: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    bits_layout: gl.constexpr = gl.BlockedLayout([4], [32], [1], [0])
    tile_columns = gl.arange(0, KEYS, layout=bits_layout)
    block = 0
    number = 0
    D: gl.constexpr = q.block_type.shape[2]
    # The end of the last prefix of the first list stands for all.
    listed_keys = gl.load(starts + slots - 1) + gl.load(counts + slots - 1)
    place = gl.program_id(0)
    while place < tiles * heads:
        head, entry = _item(
            place, row_tiles, tiles, dense, keys, listed_keys, heads, heads_per_kv, heads_per_mask,
            D,
        )  # fmt: skip
        place = gl.num_programs(0) + gl.atomic_add(taken, 1, sem="relaxed")
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
        packed = bits + la_base + (mask_row + mask_head).to(gl.int64) * la_stride
        hot = listed + whole
        if la_base >= 0:
            hot = listed
            for some in range(0, tile_row, KEYS):
                on = _tiles_on(some + tile_columns, tile_row, packed, level, levels, neighbour)
                hot += gl.sum(on.to(gl.int32), 0)

        slot = number % 2
        mbarrier.wait(q_empty.index(slot), ((number // 2) & 1) ^ 1)
        # What is written in front of the arrival below is seen by who waits for it.
        _note(notes, slot * NOTES + HEAD, head, note_layout)
        row = gl.load(entry + ROW)
        _note(notes, slot * NOTES + TILE_AT, row, note_layout)
        _note(notes, slot * NOTES + FIRST_ROW, gl.load(entry + FIRST), note_layout)
        _note(notes, slot * NOTES + STOP_ROW, gl.load(entry + STOP), note_layout)
        _note(notes, slot * NOTES + FRONT, front, note_layout)
        _note(notes, slot * NOTES + TAILS, tails, note_layout)
        _note(notes, slot * NOTES + HOT, hot, note_layout)
        _note(notes, slot * NOTES + WHOLE, whole, note_layout)
        _note(notes, slot * NOTES + SHARED, shared.to(gl.int32), note_layout)
        masked_from = listed * KEYS
        _note_limits(notes, slot * NOTES, entry, of_head, begin, masked_from, 0, note_layout)
        if shared:
            for piece in gl.static_range(1, PIECES):
                _note_limits(
                    notes, slot * NOTES, entry, of_head, begin, masked_from, piece, note_layout
                )
        full = q_full.index(slot)
        mbarrier.expect(full, 2 * Q_BYTES)
        queries = q_tile.index(2 * slot), q_tile.index(2 * slot + 1)
        tma.async_copy_global_to_shared(q, [head, row, 0], full, queries[0])
        tma.async_copy_global_to_shared(q, [head, row + HALF, 0], full, queries[1])

        block = _fetch(
            k, v, kv_head, begin, block,
            k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, STAGES,
        )  # fmt: skip
        for step in range(front):
            block = _fetch(
                k, v, kv_head, begin - (whole + step + 1) * KEYS, block,
                k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, STAGES,
            )  # fmt: skip
        for step in range(tails):
            block = _fetch(
                k_list, v_list, mask_head, start + (listed + step) * KEYS, block,
                k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, STAGES,
            )  # fmt: skip
        for step in range(whole):
            tile_column = whole - 1 - step
            on = la_base < 0
            if la_base >= 0:
                on = _tiles_on(tile_column, tile_row, packed, level, levels, neighbour)
            if on:
                block = _fetch(
                    k, v, kv_head, begin - (step + 1) * KEYS, block,
                    k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, STAGES,
                )  # fmt: skip
        for step in range(listed):
            block = _fetch(
                k_list, v_list, mask_head, start + step * KEYS, block,
                k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, STAGES,
            )  # fmt: skip
        number += 1

    slot = number % 2
    mbarrier.wait(q_empty.index(slot), ((number // 2) & 1) ^ 1)
    _note(notes, slot * NOTES + HEAD, -1, note_layout)
    mbarrier.arrive(q_full.index(slot))


# Named barriers 8 and 9 of the program are the turns of the two warpgroups at the tensor cores:
# Gluon has no name for them. An instruction needs an operand to be placed by; any number does.
@gluon.jit  # type: ignore[untyped-decorator]
def _await_turn(anything, group: gl.constexpr):  # type: ignore[no-untyped-def]
    """Wait until the other warpgroup has issued its products."""
    if group == 0:
        gl.inline_asm_elementwise(
            "bar.sync 8, 256; mov.b32 $0, $1;", "=r,r", [anything], gl.int32, False, 1
        )
    else:
        gl.inline_asm_elementwise(
            "bar.sync 9, 256; mov.b32 $0, $1;", "=r,r", [anything], gl.int32, False, 1
        )


@gluon.jit  # type: ignore[untyped-decorator]
def _pass_turn(anything, group: gl.constexpr):  # type: ignore[no-untyped-def]
    """Let warpgroup `group` issue its products."""
    if group == 0:
        gl.inline_asm_elementwise(
            "bar.arrive 8, 256; mov.b32 $0, $1;", "=r,r", [anything], gl.int32, False, 1
        )
    else:
        gl.inline_asm_elementwise(
            "bar.arrive 9, 256; mov.b32 $0, $1;", "=r,r", [anything], gl.int32, False, 1
        )


@gluon.jit
def _pairs(weights):  # type: ignore[no-untyped-def]
    """Return 16-bit weights, two to a register: from loop to loop they would go one by one."""
    return gl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [weights], weights.dtype, is_pure=False, pack=2
    )


@gluon.jit
def _shares(weights):  # type: ignore[no-untyped-def]
    """Return each row's sum over the weights of a thread; threads are added at an item's end."""
    grouped = weights.reshape([HALF, KEYS // 8, 4, 2])
    return gl.convert_layout(gl.sum(gl.sum(grouped, 3), 1), SHARES)


@gluon.jit  # type: ignore[untyped-decorator]
def _visit(  # type: ignore[no-untyped-def]
    q, p, acc, top, total, block, low, high, scale,
    k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, scores_layout: gl.constexpr,
    masked, STAGES: gl.constexpr, GROUP: gl.constexpr, TURNS: gl.constexpr,
):  # fmt: skip
    """Multiply q with block `block`, the weights of the one before with its values, together.

    Where `masked`, a row sees keys [low, high) of the block alone, [HALF] each. Known when it is
    compiled, that is no branch; the assembler waits for both products in front of one.
    """
    zeros = gl.zeros([HALF, KEYS], gl.float32, layout=scores_layout)
    D: gl.constexpr = acc.shape[1]
    stage = block % STAGES
    before = (block - 1) % STAGES
    mbarrier.wait(k_full.index(stage), (block // STAGES) & 1)
    k_block = k_tiles.index(stage).reshape([KEYS, D]).permute((1, 0))
    if TURNS:
        _await_turn(block, GROUP)
    scores_due = warpgroup_mma(q, k_block, zeros, use_acc=False, is_async=True)
    mbarrier.wait(v_full.index(before), ((block - 1) // STAGES) & 1)
    acc_due = warpgroup_mma(p, v_tiles.index(before).reshape([KEYS, D]), acc, is_async=True)
    if TURNS:
        _pass_turn(block, 1 - GROUP)
    scores = warpgroup_mma_wait(1, deps=(scores_due,))
    if masked:
        keys = gl.arange(0, KEYS, layout=gl.SliceLayout(0, scores_layout))
        seen = (keys[None, :] >= low[:, None]) & (keys[None, :] < high[:, None])
        scores = gl.where(seen, scores, float("-inf"))
    new_top = gl.maximum(top, gl.max(scores, 1) * scale)
    weight = gl.exp2(scores * scale - new_top[:, None])
    shrink = gl.exp2(top - new_top)
    total = total * gl.convert_layout(shrink, gl.SliceLayout(1, SHARES))[:, None]
    total += _shares(weight)
    acc = warpgroup_mma_wait(0, deps=(acc_due,))
    # Both here: each arrival makes the warps of the group wait for each other.
    mbarrier.arrive(k_empty.index(stage))
    mbarrier.arrive(v_empty.index(before))
    acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, acc.type.layout))[:, None]
    p = gl.convert_layout(weight.to(q.dtype), p.type.layout)
    return p, acc, new_top, total, block + 1


@gluon.jit  # type: ignore[untyped-decorator]
def _consume(  # type: ignore[no-untyped-def]
    out, lse, notes, q_tile, k_tiles, v_tiles, q_full, q_empty, k_full, k_empty, v_full, v_empty,
    lse_rows, heads, scale,
    WITH_LSE: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr, APART: gl.constexpr,
    GROUP: gl.constexpr, D: gl.constexpr,
):  # fmt: skip
    """A warpgroup: rows [64 GROUP, 64 GROUP + 64) of every item's tile."""
    scores_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 2)
    row_layout: gl.constexpr = gl.SliceLayout(1, scores_layout)
    note_layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    # 16 bytes a thread, whole rows a warp.
    store_layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // D, D // 8], [4, 1], [1, 0])
    dtype: gl.constexpr = out.dtype.element_ty

    rows = GROUP * HALF + gl.arange(0, HALF, layout=row_layout)
    keys = gl.arange(0, KEYS, layout=gl.SliceLayout(0, scores_layout))
    zeros = gl.zeros([HALF, KEYS], gl.float32, layout=scores_layout)
    stored_rows = GROUP * HALF + gl.arange(0, HALF, layout=gl.SliceLayout(1, store_layout))
    stored_columns = gl.arange(0, D, layout=gl.SliceLayout(0, store_layout))

    block = 0
    if TURNS:
        if GROUP == 1:
            _pass_turn(lse_rows, 0)
    number = 0
    slot = 0
    mbarrier.wait(q_full.index(0), 0)
    head = _read(notes, slot * NOTES + HEAD, note_layout)
    while head >= 0:
        front = _read(notes, slot * NOTES + FRONT, note_layout)
        few = front + _read(notes, slot * NOTES + TAILS, note_layout)
        whole = _read(notes, slot * NOTES + WHOLE, note_layout)
        own_from, listed_to = _read_limits(notes, slot * NOTES, rows, note_layout)
        hot = _read(notes, slot * NOTES + HOT, note_layout)

        q = q_tile.index(2 * slot + GROUP).reshape([HALF, D])
        # The diagonal, of which each row sees a key: from its maximum the others go on.
        stage = block % STAGES
        mbarrier.wait(k_full.index(stage), (block // STAGES) & 1)
        k_block = k_tiles.index(stage).reshape([KEYS, D]).permute((1, 0))
        scores_due = warpgroup_mma(q, k_block, zeros, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=(scores_due,))
        mbarrier.arrive(k_empty.index(stage))
        seen = (keys[None, :] >= own_from[:, None]) & (keys[None, :] <= rows[:, None])
        scores = gl.where(seen, scores, float("-inf"))
        top = gl.max(scores, 1) * scale
        weight = gl.exp2(scores * scale - top[:, None])
        total = _shares(weight)
        p = gl.convert_layout(weight.to(dtype), p_layout)
        acc = gl.zeros([HALF, D], gl.float32, layout=acc_layout)
        block += 1

        # The front of the tile's own keys, the end of the list, then whole blocks.
        for step in range(few if APART else few + hot):
            own = step < front
            low = gl.where(own, own_from + (whole + step + 1) * KEYS, 0)
            high = gl.where(own, KEYS, listed_to - (step - front) * KEYS)
            p, acc, top, total, block = _visit(
                q, p, acc, top, total, block, low, high, scale,
                k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, scores_layout,
                True if APART else step < few, STAGES, GROUP, TURNS,
            )  # fmt: skip
        if APART:
            p = _pairs(p)
            for _ in range(hot):
                p, acc, top, total, block = _visit(
                    q, p, acc, top, total, block, rows, rows, scale,
                    k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, scores_layout,
                    False, STAGES, GROUP, TURNS,
                )  # fmt: skip
        # Where to store is read here: registers are scarce in the loops.
        head = _read(notes, slot * NOTES + HEAD, note_layout)
        row = _read(notes, slot * NOTES + TILE_AT, note_layout)
        first = _read(notes, slot * NOTES + FIRST_ROW, note_layout)
        stop = _read(notes, slot * NOTES + STOP_ROW, note_layout)
        mbarrier.arrive(q_empty.index(slot))

        last = (block - 1) % STAGES
        mbarrier.wait(v_full.index(last), ((block - 1) // STAGES) & 1)
        acc_due = warpgroup_mma(p, v_tiles.index(last).reshape([KEYS, D]), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc_due,))
        mbarrier.arrive(v_empty.index(last))
        total = gl.convert_layout(gl.sum(total, 1), row_layout)
        acc = acc * gl.convert_layout(1.0 / total, gl.SliceLayout(1, acc_layout))[:, None]
        stored = gl.convert_layout(acc.to(dtype), store_layout)
        wanted = (stored_rows >= first) & (stored_rows < stop)
        corner = (row * heads + head).to(gl.int64) * D
        at = stored_rows[:, None] * (heads * D) + stored_columns[None, :]
        gl.store(out + corner + at, stored, mask=wanted[:, None])
        if WITH_LSE:
            wanted_rows = (rows >= first) & (rows < stop)
            lse_at = lse + head * lse_rows + row + rows
            gl.store(lse_at, (top + gl.log2(total)) * LN2, mask=wanted_rows)

        number += 1
        slot = number % 2
        mbarrier.wait(q_full.index(slot), (number // 2) & 1)
        head = _read(notes, slot * NOTES + HEAD, note_layout)


@gluon.jit(do_not_specialize=VARYING)  # type: ignore[untyped-decorator]
def attend_tiles(  # type: ignore[no-untyped-def]
    q,  # [heads, R, D], blocks of [1, 64, D]
    k,  # [kv_heads, N, D], blocks of [1, 128, D]
    v,
    k_list,  # [mask_heads, capacity, D], the same
    v_list,
    out,  # [R, heads, D], contiguous
    lse,  # float32 [heads, R], contiguous
    taken,  # int32 [1], 0
    row_tiles,  # int32 [tiles, 19]
    counts,  # int32 [mask_heads, slots] of this layer, contiguous
    starts,  # the same
    bits,  # uint8, packed
    tiles,
    dense,  # of the first tiles
    keys,  # of all prompts
    lse_rows,  # R
    mask_row,  # layer * mask_heads
    slots,
    levels,
    neighbour,  # 1 or 0
    heads,
    heads_per_kv,
    heads_per_mask,
    scale,  # times log2(e), above 0
    WITH_LSE: gl.constexpr,
    STAGES: gl.constexpr,
    TURNS: gl.constexpr,
    APART: gl.constexpr,
    D: gl.constexpr,
):
    """Attend the rows of `tiles` tiles under all heads. Launch one program per multiprocessor."""
    dtype: gl.constexpr = out.dtype.element_ty
    # Two items' queries and notes: the next item's come while one is worked on.
    q_tile = gl.allocate_shared_memory(dtype, [4, 1, HALF, D], q.layout)
    k_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, KEYS, D], k.layout)
    v_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, KEYS, D], v.layout)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    notes = gl.allocate_shared_memory(gl.int32, [2 * NOTES, 32], plain)
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], barrier)
    q_empty = gl.allocate_shared_memory(gl.int64, [2, 1], barrier)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    # Full: one arrival, and the bytes. Empty: both warpgroups.
    for slot in gl.static_range(2):
        mbarrier.init(q_full.index(slot), count=1)
        mbarrier.init(q_empty.index(slot), count=2)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(k_empty.index(stage), count=2)
        mbarrier.init(v_empty.index(stage), count=2)
    fence_async_shared()
    gl.warp_specialize(
        [
            (
                _consume,
                (
                    out, lse, notes, q_tile, k_tiles, v_tiles,
                    q_full, q_empty, k_full, k_empty, v_full, v_empty,
                    lse_rows, heads, scale,
                    WITH_LSE, STAGES, TURNS, APART, gl.constexpr(0), D,
                ),
            ),
            (
                _consume,
                (
                    out, lse, notes, q_tile, k_tiles, v_tiles,
                    q_full, q_empty, k_full, k_empty, v_full, v_empty,
                    lse_rows, heads, scale,
                    WITH_LSE, STAGES, TURNS, APART, gl.constexpr(1), D,
                ),
            ),
            (
                _produce,
                (
                    q, k, v, k_list, v_list, taken, row_tiles, counts, starts, bits,
                    notes, q_tile, k_tiles, v_tiles,
                    q_full, q_empty, k_full, k_empty, v_full, v_empty,
                    tiles, dense, keys, mask_row, slots, levels, neighbour,
                    heads, heads_per_kv, heads_per_mask, STAGES,
                ),
            ),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip
