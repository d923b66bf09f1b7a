"""Sparse-prefill attention in Gluon for Hopper (sm_90a): the device code.

One persistent program per multiprocessor. A scheduler warp takes items and looks up what they are,
a producer warp fetches 128-key blocks by TMA, two warpgroups of 64 rows each multiply and
exponentiate. An item of work is one tile of rows and one query head; its blocks come in an order
that keeps masks out of the hot loop:

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
    warpgroup_mma,
    warpgroup_mma_wait,
)

from sift_index.kernels.hopper_blocks import (
    AWAIT_TURN,
    LEAVE_ROOM,
    PASS_TURN,
    ROOM,
    TURN,
    barrier_at,
    phase_of,
    produce,
    stage_of,
)
from sift_index.kernels.hopper_items import schedule
from sift_index.kernels.hopper_notes import (
    FIRST_ROW,
    FRONT,
    HALF,
    HEAD,
    HOT,
    KEYS,
    NOTES,
    STOP_ROW,
    TAILS,
    TILE_AT,
    WHOLE,
    read,
    read_limits,
)
from sift_index.kernels.hopper_softmax import (
    SHARES,
    SLACK,
    hide,
    leave_behind,
    pairs,
    rescale,
    row_max,
    shares,
)

LN2 = gl.constexpr(math.log(2))

# Registers of a thread: the second warpgroup's and a single warp's; the first gets the rest.
CONSUMER_REGISTERS = gl.constexpr(232)
SINGLE_REGISTERS = gl.constexpr(40)

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
def _visit(  # type: ignore[no-untyped-def]
    q, p, acc, top, total, block, step, front, whole, own_from, listed_to, scale,
    k_tiles, v_tiles, k_full, v_full, scores_layout: gl.constexpr,
    masked, STAGES: gl.constexpr, GROUP: gl.constexpr, TURNS: gl.constexpr,
):  # fmt: skip
    """Multiply q with block `block`, the weights of the one before with its values, together.

    Where `masked`, this is masked block `step`, and rows have limits. Known when it is compiled,
    that is no branch; the assembler waits for both products in front of one.
    """
    zeros = gl.zeros([HALF, KEYS], gl.float32, layout=scores_layout)
    D: gl.constexpr = acc.shape[1]
    stage = stage_of(block, STAGES)
    before = stage_of(block - 1, STAGES)
    mbarrier.wait(k_full.index(stage), phase_of(block, STAGES))
    k_block = k_tiles.index(stage).reshape([KEYS, D]).permute((1, 0))
    if TURNS:
        barrier_at(AWAIT_TURN, TURN + GROUP)
    scores_due = warpgroup_mma(q, k_block, zeros, use_acc=False, is_async=True)
    mbarrier.wait(v_full.index(before), phase_of(block - 1, STAGES))
    acc_due = warpgroup_mma(p, v_tiles.index(before).reshape([KEYS, D]), acc, is_async=True)
    if TURNS:
        barrier_at(PASS_TURN, TURN + 1 - GROUP)
    scores = warpgroup_mma_wait(1, deps=(scores_due,))
    if masked:
        own = step < front
        low = gl.where(own, own_from + (whole + step + 1) * KEYS, 0)
        high = gl.where(own, KEYS, listed_to - (step - front) * KEYS)
        scores = hide(scores, low, high)
    block_top = row_max(scores) * scale
    new_top = gl.where(block_top > top + SLACK, block_top, top)
    weight = gl.exp2(scores * scale - new_top[:, None])
    shrink = gl.exp2(top - new_top)
    total = total * gl.convert_layout(shrink, gl.SliceLayout(1, SHARES))[:, None]
    total = leave_behind(total + shares(weight), block, STAGES)
    acc = warpgroup_mma_wait(0, deps=(acc_due,))
    barrier_at(LEAVE_ROOM, ROOM + STAGES + stage_of(block - 1, STAGES))
    acc = rescale(acc, shrink)
    p = gl.convert_layout(weight.to(q.dtype), p.type.layout)
    return p, acc, new_top, total, block + 1


@gluon.jit  # type: ignore[untyped-decorator]
def _consume(  # type: ignore[no-untyped-def]
    out, lse, notes, q_tile, k_tiles, v_tiles, q_full, finished, k_full, v_full,
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
    limited_rows = GROUP * HALF + gl.arange(0, HALF, layout=gl.SliceLayout(1, SHARES))
    zeros = gl.zeros([HALF, KEYS], gl.float32, layout=scores_layout)
    stored_rows = GROUP * HALF + gl.arange(0, HALF, layout=gl.SliceLayout(1, store_layout))
    stored_columns = gl.arange(0, D, layout=gl.SliceLayout(0, store_layout))

    block = 0
    if TURNS:
        if GROUP == 1:
            barrier_at(PASS_TURN, TURN)
    number = 0
    slot = 0
    mbarrier.wait(q_full.index(0), 0)
    head = read(notes, HEAD, note_layout)
    while head >= 0:
        here = slot * NOTES
        front = read(notes, here + FRONT, note_layout)
        few = front + read(notes, here + TAILS, note_layout)
        whole = read(notes, here + WHOLE, note_layout)
        own_from, listed_to = read_limits(notes, here, limited_rows, note_layout)
        hot = read(notes, here + HOT, note_layout)

        q = q_tile.index(2 * slot + GROUP).reshape([HALF, D])
        # The diagonal, of which each row sees a key: from its maximum the others go on.
        stage = stage_of(block, STAGES)
        mbarrier.wait(k_full.index(stage), phase_of(block, STAGES))
        k_block = k_tiles.index(stage).reshape([KEYS, D]).permute((1, 0))
        scores_due = warpgroup_mma(q, k_block, zeros, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=(scores_due,))
        barrier_at(LEAVE_ROOM, ROOM + stage_of(block, STAGES))
        scores = hide(scores, own_from, limited_rows + 1)
        top = row_max(scores) * scale
        weight = gl.exp2(scores * scale - top[:, None])
        total = shares(weight)
        p = gl.convert_layout(weight.to(dtype), p_layout)
        acc = gl.zeros([HALF, D], gl.float32, layout=acc_layout)
        block += 1

        # The front of the tile's own keys, the end of the list, then whole blocks.
        for step in range(few if APART else few + hot):
            p, acc, top, total, block = _visit(
                q, p, acc, top, total, block, step, front, whole, own_from, listed_to, scale,
                k_tiles, v_tiles, k_full, v_full, scores_layout,
                True if APART else step < few, STAGES, GROUP, TURNS,
            )  # fmt: skip
        if APART:
            p = pairs(p)
            for _ in range(hot):
                p, acc, top, total, block = _visit(
                    q, p, acc, top, total, block, 0, 0, 0, own_from, listed_to, scale,
                    k_tiles, v_tiles, k_full, v_full, scores_layout,
                    False, STAGES, GROUP, TURNS,
                )  # fmt: skip
        # Where to store is read here: registers are scarce in the loops.
        head = read(notes, here + HEAD, note_layout)
        row = read(notes, here + TILE_AT, note_layout)
        first = read(notes, here + FIRST_ROW, note_layout)
        stop = read(notes, here + STOP_ROW, note_layout)
        mbarrier.arrive(finished.index(slot))

        last = stage_of(block - 1, STAGES)
        mbarrier.wait(v_full.index(last), phase_of(block - 1, STAGES))
        acc_due = warpgroup_mma(p, v_tiles.index(last).reshape([KEYS, D]), acc, is_async=True)
        # The rest is worked out while the tensor cores are busy.
        total = gl.convert_layout(gl.sum(total, 1), row_layout)
        share = gl.convert_layout(1.0 / total, gl.SliceLayout(1, acc_layout))[:, None]
        if WITH_LSE:
            wanted_rows = (rows >= first) & (rows < stop)
            lse_at = lse + head * lse_rows + row + rows
            gl.store(lse_at, (top + gl.log2(total)) * LN2, mask=wanted_rows)
        wanted = (stored_rows >= first) & (stored_rows < stop)
        corner = (row * heads + head).to(gl.int64) * D
        at = stored_rows[:, None] * (heads * D) + stored_columns[None, :]
        acc = warpgroup_mma_wait(0, deps=(acc_due,))
        barrier_at(LEAVE_ROOM, ROOM + STAGES + stage_of(block - 1, STAGES))
        stored = gl.convert_layout((acc * share).to(dtype), store_layout)
        gl.store(out + corner + at, stored, mask=wanted[:, None])

        number += 1
        slot = number & 1
        mbarrier.wait(q_full.index(slot), (number >> 1) & 1)
        head = read(notes, slot * NOTES + HEAD, note_layout)


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
    """Attend the rows of `tiles` tiles under all heads.

    Launch one program per multiprocessor, and no more of them than tiles * heads.
    """
    dtype: gl.constexpr = out.dtype.element_ty
    # Two items' queries and notes: the next item's come while one is worked on.
    q_tile = gl.allocate_shared_memory(dtype, [4, 1, HALF, D], q.layout)
    k_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, KEYS, D], k.layout)
    v_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, KEYS, D], v.layout)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    notes = gl.allocate_shared_memory(gl.int32, [2 * NOTES, 32], plain)
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    noted = gl.allocate_shared_memory(gl.int64, [2, 1], barrier)
    finished = gl.allocate_shared_memory(gl.int64, [2, 1], barrier)
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], barrier)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    # One arrival, and the bytes; an item is finished with by both warpgroups.
    for slot in gl.static_range(2):
        mbarrier.init(noted.index(slot), count=1)
        mbarrier.init(finished.index(slot), count=2)
        mbarrier.init(q_full.index(slot), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(v_full.index(stage), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (
                _consume,
                (
                    out, lse, notes, q_tile, k_tiles, v_tiles, q_full, finished, k_full, v_full,
                    lse_rows, heads, scale,
                    WITH_LSE, STAGES, TURNS, APART, gl.constexpr(0), D,
                ),
            ),
            (
                _consume,
                (
                    out, lse, notes, q_tile, k_tiles, v_tiles, q_full, finished, k_full, v_full,
                    lse_rows, heads, scale,
                    WITH_LSE, STAGES, TURNS, APART, gl.constexpr(1), D,
                ),
            ),
            (
                produce,
                (
                    q, k, v, k_list, v_list, bits,
                    notes, noted, q_tile, k_tiles, v_tiles, q_full, k_full, v_full,
                    levels, neighbour, STAGES,
                ),
            ),
            (
                schedule,
                (
                    taken, row_tiles, counts, starts, bits, notes, noted, finished,
                    tiles, dense, keys, mask_row, slots, levels, neighbour,
                    heads, heads_per_kv, heads_per_mask, D,
                ),
            ),
        ],
        [4, 1, 1],
        [CONSUMER_REGISTERS, SINGLE_REGISTERS, SINGLE_REGISTERS],
    )  # fmt: skip
