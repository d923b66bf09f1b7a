"""The producer of the Hopper kernel: fetches queries, keys and values ahead, where there is room.

Keys lie in a ring of stages, values in another one. Import this module only where Triton's Gluon is
installed.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from sift_index.kernels.hopper_items import tiles_on
from sift_index.kernels.hopper_notes import (
    FIRST_KEY,
    FRONT,
    HALF,
    HEAD,
    KEYS,
    KV_HEAD,
    LA_AT,
    LA_LEVEL,
    LA_ROW,
    LIST_START,
    LISTED,
    MASK_HEAD,
    NOTES,
    TAILS,
    TILE_AT,
    WHOLE,
    read,
)

# Named barriers, of 16; the compiler's own are the first ones. Gluon has no name for them, so they
# come as assembly. Unlike at barriers in memory, threads arrive without waiting for their group.
# ROOM: a room for keys is free again, behind those the same of values; the 32 threads of the
# producer wait, the 256 of both warpgroups arrive. There are two for each stage, so up to 4 stages
# leave the last two free. TURN: a warpgroup may issue its products.
ROOM = gl.constexpr(6)
TURN = gl.constexpr(14)
AWAIT_ROOM = gl.constexpr("bar.sync $1, 288; mov.b32 $0, $1;")
LEAVE_ROOM = gl.constexpr("bar.arrive $1, 288; mov.b32 $0, $1;")
AWAIT_TURN = gl.constexpr("bar.sync $1, 256; mov.b32 $0, $1;")
PASS_TURN = gl.constexpr("bar.arrive $1, 256; mov.b32 $0, $1;")


@gluon.jit  # type: ignore[untyped-decorator]
def stage_of(entry, STAGES: gl.constexpr):  # type: ignore[no-untyped-def]
    """Return where in the ring an entry is; of signed numbers a remainder would take longer."""
    return entry & (STAGES - 1)


@gluon.jit  # type: ignore[untyped-decorator]
def phase_of(entry, STAGES: gl.constexpr):  # type: ignore[no-untyped-def]
    """Return which phase of its stage's barrier an entry completes. There are 2 or 4 stages."""
    return (entry >> (STAGES // 2)) & 1


@gluon.jit  # type: ignore[untyped-decorator]
def barrier_at(what: gl.constexpr, number):  # type: ignore[no-untyped-def]
    """Await or leave, as the assembly `what` says, the named barrier of that number."""
    gl.inline_asm_elementwise(what, "=r,r", [number], gl.int32, False, 1)


@gluon.jit  # type: ignore[untyped-decorator]
def _copy(tensor, head, key, rooms, full, entry, STAGES: gl.constexpr):  # type: ignore[no-untyped-def]
    stage = stage_of(entry, STAGES)
    there = full.index(stage)
    mbarrier.expect(there, tensor.block_type.nbytes)
    tma.async_copy_global_to_shared(tensor, [head, key, 0], there, rooms.index(stage))


@gluon.jit  # type: ignore[untyped-decorator]
def _fetch_values(  # type: ignore[no-untyped-def]
    v, v_list, listed, head, key, entry, v_tiles, v_full, STAGES: gl.constexpr
):
    if entry >= STAGES:
        barrier_at(AWAIT_ROOM, ROOM + STAGES + stage_of(entry, STAGES))
    if listed > 0:
        _copy(v_list, head, key, v_tiles, v_full, entry, STAGES)
    else:
        _copy(v, head, key, v_tiles, v_full, entry, STAGES)


@gluon.jit  # type: ignore[untyped-decorator]
def _fetch(  # type: ignore[no-untyped-def]
    k, listed, head, key, v, v_list, listed_before, head_before, before, block,
    k_tiles, v_tiles, k_full, v_full, STAGES: gl.constexpr,
):  # fmt: skip
    """Copy the keys of a block to the ring, and the values of the block before: as they are used.

    Returns the number of the next block, and where this one came from.
    """
    if block >= STAGES:
        barrier_at(AWAIT_ROOM, ROOM + stage_of(block, STAGES))
    _copy(k, head, key, k_tiles, k_full, block, STAGES)
    if block > 0:
        _fetch_values(
            v, v_list, listed_before, head_before, before, block - 1, v_tiles, v_full, STAGES
        )
    return block + 1, listed, head, key


@gluon.jit  # type: ignore[untyped-decorator]
def produce(  # type: ignore[no-untyped-def]
    q, k, v, k_list, v_list, bits,
    notes, noted, q_tile, k_tiles, v_tiles, q_full, k_full, v_full,
    levels, neighbour, STAGES: gl.constexpr,
):  # fmt: skip
    """The producer warp: fetch every item's queries and blocks, as far ahead as there is room."""
    Q_BYTES: gl.constexpr = q.block_type.nbytes
    note_layout: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    block = 0
    listed_before, head_before, before = 0, 0, 0
    number = 0
    slot = 0
    mbarrier.wait(noted.index(0), 0)
    head = read(notes, HEAD, note_layout)
    while head >= 0:
        here = slot * NOTES
        row = read(notes, here + TILE_AT, note_layout)
        full = q_full.index(slot)
        mbarrier.expect(full, 2 * Q_BYTES)
        queries = q_tile.index(2 * slot), q_tile.index(2 * slot + 1)
        tma.async_copy_global_to_shared(q, [head, row, 0], full, queries[0])
        tma.async_copy_global_to_shared(q, [head, row + HALF, 0], full, queries[1])

        # All of it in front of the first block: where that is the only one, both warpgroups may be
        # finished, and the scheduler writing down another item, before the next line.
        kv_head = read(notes, here + KV_HEAD, note_layout)
        mask_head = read(notes, here + MASK_HEAD, note_layout)
        begin = read(notes, here + FIRST_KEY, note_layout)
        start = read(notes, here + LIST_START, note_layout)
        front = read(notes, here + FRONT, note_layout)
        tails = read(notes, here + TAILS, note_layout)
        whole = read(notes, here + WHOLE, note_layout)
        listed = read(notes, here + LISTED, note_layout)
        la_at = read(notes, here + LA_AT, note_layout)
        tile_row = read(notes, here + LA_ROW, note_layout)
        level = read(notes, here + LA_LEVEL, note_layout)
        block, listed_before, head_before, before = _fetch(
            k, 0, kv_head, begin,
            v, v_list, listed_before, head_before, before, block,
            k_tiles, v_tiles, k_full, v_full, STAGES,
        )  # fmt: skip
        for step in range(front):
            block, listed_before, head_before, before = _fetch(
                k, 0, kv_head, begin - (whole + step + 1) * KEYS,
                v, v_list, listed_before, head_before, before, block,
                k_tiles, v_tiles, k_full, v_full, STAGES,
            )  # fmt: skip
        for step in range(tails):
            block, listed_before, head_before, before = _fetch(
                k_list, 1, mask_head, start + (listed + step) * KEYS,
                v, v_list, listed_before, head_before, before, block,
                k_tiles, v_tiles, k_full, v_full, STAGES,
            )  # fmt: skip
        for step in range(whole):
            on = la_at < 0
            if la_at >= 0:
                on = tiles_on(whole - 1 - step, tile_row, bits + la_at, level, levels, neighbour)
            if on:
                block, listed_before, head_before, before = _fetch(
                    k, 0, kv_head, begin - (step + 1) * KEYS,
                    v, v_list, listed_before, head_before, before, block,
                    k_tiles, v_tiles, k_full, v_full, STAGES,
                )  # fmt: skip
        for step in range(listed):
            block, listed_before, head_before, before = _fetch(
                k_list, 1, mask_head, start + step * KEYS,
                v, v_list, listed_before, head_before, before, block,
                k_tiles, v_tiles, k_full, v_full, STAGES,
            )  # fmt: skip

        number += 1
        slot = number & 1
        mbarrier.wait(noted.index(slot), (number >> 1) & 1)
        head = read(notes, slot * NOTES + HEAD, note_layout)

    _fetch_values(v, v_list, listed_before, head_before, before, block - 1, v_tiles, v_full, STAGES)
    mbarrier.arrive(q_full.index(slot))
