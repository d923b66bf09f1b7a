"""Sparse-prefill attention in Gluon for Hopper (sm_90a): the device code.

One persistent program per multiprocessor. A producer warp fetches 128-key blocks by TMA, two
warpgroups of 64 rows each multiply and exponentiate. An item of work is one tile of rows and one
query head; its blocks come in an order that keeps masks out of the hot loop:

1. the diagonal, at the tile's own rows (causal mask),
2. what is left at the front of the tile's own keys (its first keys masked),
3. the tail of its prefix of the compacted list (the last keys masked),
4. whole blocks of its own keys, of tiles that are on, then whole blocks of the list.

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

from sift_index.kernels import device_plan as columns
from sift_index.kernels.plan import TILE

ROWS = gl.constexpr(TILE)
HALF = gl.constexpr(TILE // 2)  # rows of a warpgroup
KEYS = gl.constexpr(TILE)  # keys of a block: a block of own keys is one LA tile
BEGIN = gl.constexpr(columns.BEGIN)
END = gl.constexpr(columns.END)
OWN_START = gl.constexpr(columns.OWN_START)
SLOT = gl.constexpr(columns.SLOT)
TILE_ROW = gl.constexpr(columns.TILE_ROW)
LA_BASE = gl.constexpr(columns.LA_BASE)
LA_STRIDE = gl.constexpr(columns.LA_STRIDE)
COLUMNS = gl.constexpr(columns.ROW_COLUMNS)
LN2 = gl.constexpr(math.log(2))

# What the producer tells the warpgroups of an item, a number each.
HEAD, FIRST_ROW, STOP_ROW, PART, TAIL, HOT = map(gl.constexpr, range(6))
NOTES = gl.constexpr(6)

# Registers of a thread: the second warpgroup's and the producer's; the first gets the rest.
CONSUMER_REGISTERS = gl.constexpr(232)
PRODUCER_REGISTERS = gl.constexpr(40)

# Host integers that change with every prompt and chunk: specialised, each would compile anew.
VARYING = [
    "tiles",
    "dense",
    "known_tiles",
    "length",
    "row_start",
    "row_stop",
    "mask_row",
    "slots",
    "level",
    "levels",
    "neighbour",
    "heads",
    "heads_per_kv",
    "heads_per_mask",
]


@gluon.jit
def _item(  # type: ignore[no-untyped-def]
    place, order, row_tiles, counts, tiles, dense, known_tiles, length, row_stop, slots,
    heads, heads_per_mask,
):  # fmt: skip
    """Return an item's query head, rows, first own key, list prefix and where its LA bits are.

    Dense tiles come first, of all heads, since they are the dearest. The others come head by head,
    so that the list of a head stays in the L2 cache.
    """
    behind = place - dense * heads
    each = gl.where(behind < 0, dense, tiles - dense)
    place = gl.where(behind < 0, place, behind)
    head = place // each
    tile = gl.load(order + gl.where(behind < 0, 0, dense) + place % each)
    # Rows behind the plan have no entry: they are cut from its end, and dense.
    known = tile < known_tiles
    entry = row_tiles + tile * COLUMNS
    unknown = length + (tile - known_tiles) * ROWS
    begin = gl.where(known, gl.load(entry + BEGIN, mask=known, other=0), unknown)
    end = gl.where(known, gl.load(entry + END, mask=known, other=0), unknown + ROWS)
    own_start = gl.load(entry + OWN_START, mask=known, other=0)
    slot = gl.load(entry + SLOT, mask=known, other=0)
    tile_row = gl.load(entry + TILE_ROW, mask=known, other=0)
    la_base = gl.load(entry + LA_BASE, mask=known, other=-1)
    la_stride = gl.load(entry + LA_STRIDE, mask=known, other=0)
    count = gl.load(counts + head // heads_per_mask * slots + slot)
    # Own keys lie in front of `begin`.
    return head, begin, gl.minimum(end, row_stop), own_start, count, tile_row, la_base, la_stride


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
    q, k, v, k_list, v_list, taken, order, row_tiles, counts, bits,
    notes, q_tile, k_tiles, v_tiles, q_full, q_empty, k_full, k_empty, v_full, v_empty,
    tiles, dense, known_tiles, length, row_start, row_stop, mask_row, slots, level, levels,
    neighbour, heads, heads_per_kv, heads_per_mask, STAGES: gl.constexpr,
):  # fmt: skip
    """The producer warp: fetch every item's queries and blocks, as far ahead as there is room."""
    Q_BYTES: gl.constexpr = q.block_type.nbytes
    note_layout: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    bits_layout: gl.constexpr = gl.BlockedLayout([4], [32], [1], [0])
    tile_columns = gl.arange(0, KEYS, layout=bits_layout)
    block = 0
    number = 0
    place = gl.program_id(0)
    while place < tiles * heads:
        head, begin, end, own_start, count, tile_row, la_base, la_stride = _item(
            place, order, row_tiles, counts, tiles, dense, known_tiles, length, row_stop, slots,
            heads, heads_per_mask,
        )  # fmt: skip
        place = gl.num_programs(0) + gl.atomic_add(taken, 1, sem="relaxed")
        kv_head = head // heads_per_kv
        mask_head = head // heads_per_mask
        whole = (begin - own_start) // KEYS
        part = (begin - own_start) % KEYS
        listed = count // KEYS
        tail = count % KEYS
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
        _note(notes, slot * NOTES + FIRST_ROW, begin, note_layout)
        _note(notes, slot * NOTES + STOP_ROW, end, note_layout)
        _note(notes, slot * NOTES + PART, part, note_layout)
        _note(notes, slot * NOTES + TAIL, tail, note_layout)
        _note(notes, slot * NOTES + HOT, hot, note_layout)
        full = q_full.index(slot)
        mbarrier.expect(full, 2 * Q_BYTES)
        local = begin - row_start
        queries = q_tile.index(2 * slot), q_tile.index(2 * slot + 1)
        tma.async_copy_global_to_shared(q, [head, local, 0], full, queries[0])
        tma.async_copy_global_to_shared(q, [head, local + HALF, 0], full, queries[1])

        block = _fetch(
            k, v, kv_head, begin, block,
            k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, STAGES,
        )  # fmt: skip
        if part > 0:
            block = _fetch(
                k, v, kv_head, begin - (whole + 1) * KEYS, block,
                k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, STAGES,
            )  # fmt: skip
        if tail > 0:
            block = _fetch(
                k_list, v_list, mask_head, listed * KEYS, block,
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
                k_list, v_list, mask_head, step * KEYS, block,
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


@gluon.jit  # type: ignore[untyped-decorator]
def _visit(  # type: ignore[no-untyped-def]
    q, p, acc, top, total, block, low, high, scale,
    k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, scores_layout: gl.constexpr,
    MASKED: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr, TURNS: gl.constexpr,
):  # fmt: skip
    """Multiply q with block `block`, the weights of the one before with its values, together.

    Where MASKED only keys [low, high) of the block count. No branch may stand between the products
    and the wait for the second: the assembler would wait in front of it.
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
    mbarrier.arrive(k_empty.index(stage))
    if MASKED:
        keys = gl.arange(0, KEYS, layout=gl.SliceLayout(0, scores_layout))
        seen = (keys >= low) & (keys < high)
        scores = gl.where(seen[None, :], scores, float("-inf"))
    new_top = gl.maximum(top, gl.max(scores, 1) * scale)
    weight = gl.exp2(scores * scale - new_top[:, None])
    shrink = gl.exp2(top - new_top)
    total = total * shrink + gl.sum(weight, 1)
    acc = warpgroup_mma_wait(0, deps=(acc_due,))
    mbarrier.arrive(v_empty.index(before))
    acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, acc.type.layout))[:, None]
    p = gl.convert_layout(weight.to(q.dtype), p.type.layout)
    return p, acc, new_top, total, block + 1


@gluon.jit  # type: ignore[untyped-decorator]
def _consume(  # type: ignore[no-untyped-def]
    out, lse, notes, q_tile, k_tiles, v_tiles, q_full, q_empty, k_full, k_empty, v_full, v_empty,
    row_start, row_stop, scale, out_head_stride, out_row_stride,
    WITH_LSE: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr,
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
            _pass_turn(row_start, 0)
    number = 0
    slot = 0
    mbarrier.wait(q_full.index(0), 0)
    head = _read(notes, slot * NOTES + HEAD, note_layout)
    while head >= 0:
        part = _read(notes, slot * NOTES + PART, note_layout)
        tail = _read(notes, slot * NOTES + TAIL, note_layout)
        hot = _read(notes, slot * NOTES + HOT, note_layout)

        q = q_tile.index(2 * slot + GROUP).reshape([HALF, D])
        # The diagonal, of which each row sees a key: from its maximum the others go on.
        stage = block % STAGES
        mbarrier.wait(k_full.index(stage), (block // STAGES) & 1)
        k_block = k_tiles.index(stage).reshape([KEYS, D]).permute((1, 0))
        scores_due = warpgroup_mma(q, k_block, zeros, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=(scores_due,))
        mbarrier.arrive(k_empty.index(stage))
        scores = gl.where(keys[None, :] <= rows[:, None], scores, float("-inf"))
        top = gl.max(scores, 1) * scale
        weight = gl.exp2(scores * scale - top[:, None])
        total = gl.sum(weight, 1)
        p = gl.convert_layout(weight.to(dtype), p_layout)
        acc = gl.zeros([HALF, D], gl.float32, layout=acc_layout)
        block += 1

        # What is left of the tile's own keys, and the tail of the list.
        for step in range((part > 0).to(gl.int32) + (tail > 0).to(gl.int32)):
            own = (step == 0) & (part > 0)
            low = gl.where(own, KEYS - part, 0)
            high = gl.where(own, KEYS, tail)
            p, acc, top, total, block = _visit(
                q, p, acc, top, total, block, low, high, scale,
                k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, scores_layout,
                True, STAGES, GROUP, TURNS,
            )  # fmt: skip
        p = _pairs(p)
        for _ in range(hot):
            p, acc, top, total, block = _visit(
                q, p, acc, top, total, block, 0, KEYS, scale,
                k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, scores_layout,
                False, STAGES, GROUP, TURNS,
            )  # fmt: skip
        # Where to store is read here: registers are scarce in the loops.
        head = _read(notes, slot * NOTES + HEAD, note_layout)
        begin = _read(notes, slot * NOTES + FIRST_ROW, note_layout)
        end = _read(notes, slot * NOTES + STOP_ROW, note_layout)
        mbarrier.arrive(q_empty.index(slot))

        last = (block - 1) % STAGES
        mbarrier.wait(v_full.index(last), ((block - 1) // STAGES) & 1)
        acc_due = warpgroup_mma(p, v_tiles.index(last).reshape([KEYS, D]), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc_due,))
        mbarrier.arrive(v_empty.index(last))
        acc = acc * gl.convert_layout(1.0 / total, gl.SliceLayout(1, acc_layout))[:, None]
        stored = gl.convert_layout(acc.to(dtype), store_layout)
        wanted = (begin + stored_rows >= row_start) & (begin + stored_rows < end)
        corner = head.to(gl.int64) * out_head_stride
        corner += (begin - row_start).to(gl.int64) * out_row_stride
        at = stored_rows[:, None] * out_row_stride + stored_columns[None, :]
        gl.store(out + corner + at, stored, mask=wanted[:, None])
        if WITH_LSE:
            wanted_rows = (begin + rows >= row_start) & (begin + rows < end)
            lse_at = lse + head.to(gl.int64) * (row_stop - row_start) + (begin - row_start) + rows
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
    out,  # [heads, R, D]
    lse,  # float32 [heads, R], contiguous
    taken,  # int32 [1], 0
    order,  # int32 [tiles]
    row_tiles,  # int32 [known_tiles, 8]
    counts,  # int32 [mask_heads, slots] of this layer, contiguous
    bits,  # uint8, packed
    tiles,
    dense,  # of the first tiles in the order
    known_tiles,
    length,  # rows behind it are dense
    row_start,
    row_stop,
    mask_row,  # layer * mask_heads
    slots,
    level,
    levels,
    neighbour,  # 1 or 0
    heads,
    heads_per_kv,
    heads_per_mask,
    scale,  # times log2(e), above 0
    out_head_stride,
    out_row_stride,
    WITH_LSE: gl.constexpr,
    STAGES: gl.constexpr,
    TURNS: gl.constexpr,
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
                    row_start, row_stop, scale, out_head_stride, out_row_stride,
                    WITH_LSE, STAGES, TURNS, gl.constexpr(0), D,
                ),
            ),
            (
                _consume,
                (
                    out, lse, notes, q_tile, k_tiles, v_tiles,
                    q_full, q_empty, k_full, k_empty, v_full, v_empty,
                    row_start, row_stop, scale, out_head_stride, out_row_stride,
                    WITH_LSE, STAGES, TURNS, gl.constexpr(1), D,
                ),
            ),
            (
                _produce,
                (
                    q, k, v, k_list, v_list, taken, order, row_tiles, counts, bits,
                    notes, q_tile, k_tiles, v_tiles,
                    q_full, q_empty, k_full, k_empty, v_full, v_empty,
                    tiles, dense, known_tiles, length, row_start, row_stop, mask_row, slots, level,
                    levels, neighbour, heads, heads_per_kv, heads_per_mask, STAGES,
                ),
            ),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip
