"""Sparse-prefill attention in portable Triton: any GPU Triton knows, a CPU under its interpreter.

One program per tile of up to 128 rows and query head. It walks a prefix of the head's compacted
key list, then the contiguous keys in front of its own rows, then those under the causal diagonal.
Masks are needed only for the list's tail and for the diagonal, and where rows of several documents
share a tile, for what not all of them see. `reference` is its truth; import
this module only where Triton is installed.
"""

import math
from functools import partial

import torch
import triton
import triton.language as tl

from sift_index.kernels import row_tiles as columns
from sift_index.kernels import triton_compaction
from sift_index.kernels.device_plan import DevicePlan
from sift_index.kernels.lists import attend_through_lists
from sift_index.kernels.plan import TILE
from sift_index.kernels.work import Work

ROWS = tl.constexpr(TILE)
BEGIN = tl.constexpr(columns.BEGIN)
ROW = tl.constexpr(columns.ROW)
FIRST = tl.constexpr(columns.FIRST)
STOP = tl.constexpr(columns.STOP)
OWN_START = tl.constexpr(columns.OWN_START)
SLOT = tl.constexpr(columns.SLOT)
TILE_ROW = tl.constexpr(columns.TILE_ROW)
LA_BASE = tl.constexpr(columns.LA_BASE)
LA_STRIDE = tl.constexpr(columns.LA_STRIDE)
LEVEL = tl.constexpr(columns.LEVEL)
PIECE = tl.constexpr(columns.PIECE)
PIECE_COLUMNS = tl.constexpr(columns.PIECE_COLUMNS)
PIECES = tl.constexpr(columns.PIECES)
COLUMNS = tl.constexpr(columns.ROW_COLUMNS)
LN2 = tl.constexpr(math.log(2))


@triton.jit  # type: ignore[untyped-decorator]
def _visit(  # type: ignore[no-untyped-def]
    acc,  # float32 [ROWS, D], unnormalised output
    top,  # float32 [ROWS], running maximum in base 2
    total,  # float32 [ROWS], running sum of exp2(score - top)
    q,  # [ROWS, D]
    k,  # first key of the block
    v,
    k_stride,
    v_stride,
    low,  # int32 [ROWS]: the first key that each row sees, relative to the block's first
    row,  # int32 [ROWS]: the last one
    stop,  # keys of the block that exist
    scale,  # of scores, in base 2
    MASKED: tl.constexpr,
    D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attend to one block of keys; MASKED applies what each row sees and the block's end."""
    key = tl.arange(0, BLOCK_N)
    column = tl.arange(0, D)
    k_at = k + key[:, None] * k_stride + column[None, :]
    v_at = v + key[:, None] * v_stride + column[None, :]
    if MASKED:
        k_block = tl.load(k_at, mask=(key < stop)[:, None], other=0.0)
        v_block = tl.load(v_at, mask=(key < stop)[:, None], other=0.0)
    else:
        k_block = tl.load(k_at)
        v_block = tl.load(v_at)
    scores = tl.dot(q, tl.trans(k_block), input_precision=PRECISION) * scale  # [ROWS, BLOCK_N]
    if MASKED:
        seen = (key < stop)[None, :] & (key[None, :] >= low[:, None])
        seen = seen & (key[None, :] <= row[:, None])
        scores = tl.where(seen, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    shrink = tl.exp2(top - new_top)
    weight = tl.exp2(scores - new_top[:, None])
    total = total * shrink + tl.sum(weight, 1)
    acc = acc * shrink[:, None]
    acc += tl.dot(weight.to(v_block.dtype), v_block, input_precision=PRECISION)
    return acc, new_top, total


@triton.jit
def _listed_extent(entry, counts):  # type: ignore[no-untyped-def]
    """Return the fewest and the most listed keys that a row of the tile sees."""
    few = tl.load(counts + tl.load(entry + SLOT))
    most = few
    for piece in tl.static_range(PIECES - 1):
        count = tl.load(counts + tl.load(entry + PIECE + piece * PIECE_COLUMNS + 2))
        few = tl.minimum(few, count)
        most = tl.maximum(most, count)
    return few, most


# Read where they are needed, not kept through the loops: registers are scarce there.
@triton.jit
def _listed(entry, counts):  # type: ignore[no-untyped-def]
    """Return int32 [ROWS]: how many listed keys each row sees."""
    row = tl.arange(0, ROWS)
    first = tl.load(counts + tl.load(entry + SLOT, volatile=True), volatile=True)
    found = tl.zeros((ROWS,), tl.int32) + first
    for piece in tl.static_range(PIECES - 1):
        at = entry + PIECE + piece * PIECE_COLUMNS
        count = tl.load(counts + tl.load(at + 2, volatile=True), volatile=True)
        found = tl.where(row >= tl.load(at, volatile=True), count, found)
    return found


@triton.jit
def _first_own(entry):  # type: ignore[no-untyped-def]
    """Return the first key of its own that a row of the tile sees."""
    found = tl.load(entry + OWN_START, volatile=True)
    for piece in tl.static_range(PIECES - 1):
        at = entry + PIECE + piece * PIECE_COLUMNS
        found = tl.minimum(found, tl.load(at + 1, volatile=True))
    return found


@triton.jit
def _own(entry):  # type: ignore[no-untyped-def]
    """Return int32 [ROWS]: the first key of its own that each row sees."""
    row = tl.arange(0, ROWS)
    found = tl.zeros((ROWS,), tl.int32) + tl.load(entry + OWN_START, volatile=True)
    for piece in tl.static_range(PIECES - 1):
        at = entry + PIECE + piece * PIECE_COLUMNS
        start = tl.load(at + 1, volatile=True)
        found = tl.where(row >= tl.load(at, volatile=True), start, found)
    return found


# Host integers that change with every prompt and chunk: specialised, each would compile anew.
_VARYING = ["rows", "mask_row", "slots", "capacity"]


@triton.jit(do_not_specialize=_VARYING)  # type: ignore[untyped-decorator]
def _attend_tile(  # type: ignore[no-untyped-def]
    q,  # [heads, R, D]
    k,  # [kv_heads, N, D]
    v,
    k_list,  # [mask_heads, capacity, D], contiguous
    v_list,
    out,  # [heads, R, D]
    lse,  # float32 [heads, R], contiguous
    row_tiles,  # int32 [tiles, 19]
    counts,  # int32 [mask_heads, slots] of this layer, contiguous
    starts,  # the same
    bits,  # uint8, packed
    rows,  # R
    mask_row,  # layer * mask_heads
    slots,
    capacity,
    scale,  # times log2(e)
    q_head_stride,
    q_row_stride,
    k_head_stride,
    k_row_stride,
    v_head_stride,
    v_row_stride,
    out_head_stride,
    out_row_stride,
    heads_per_kv,
    heads_per_mask,
    LEVELS: tl.constexpr,
    NEIGHBOUR: tl.constexpr,
    WITH_LSE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    entry = row_tiles + tl.program_id(0) * COLUMNS
    head = tl.program_id(1)
    mask_head = head // heads_per_mask

    begin = tl.load(entry + BEGIN)
    place = tl.load(entry + ROW)
    first = tl.load(entry + FIRST)
    stop = tl.load(entry + STOP)
    end = begin + stop

    of_tile = tl.arange(0, ROWS)
    row = begin + of_tile
    column = tl.arange(0, D)
    wanted = (of_tile >= first) & (of_tile < stop)
    local = (place + of_tile).to(tl.int64)[:, None]
    q_at = q + head.to(tl.int64) * q_head_stride + local * q_row_stride + column[None, :]
    q_rows = tl.load(q_at, mask=wanted[:, None], other=0.0)

    acc = tl.zeros((ROWS, D), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    # Below any score, yet finite: a row may see no key of the first block.
    top = tl.full((ROWS,), -1e30, tl.float32)

    # The list's prefix: whole blocks, then what only some rows see, or not all of a block.
    of_head = counts + mask_head * slots
    few, most = _listed_extent(entry, of_head)
    start = tl.load(starts + mask_head * slots + tl.load(entry + SLOT))
    list_at = (mask_head.to(tl.int64) * capacity + start) * D
    for block in range(few // BLOCK_N):
        at = list_at + block * (BLOCK_N * D)
        acc, top, total = _visit(
            acc, top, total, q_rows, k_list + at, v_list + at, D, D, row, row, BLOCK_N, scale,
            False, D, BLOCK_N, PRECISION,
        )  # fmt: skip
    tails = tl.cdiv(most, BLOCK_N)
    if few // BLOCK_N < tails:
        last = _listed(entry, of_head) - 1
        for block in range(few // BLOCK_N, tails):
            key = block * BLOCK_N
            at = list_at + key * D
            acc, top, total = _visit(
                acc, top, total, q_rows, k_list + at, v_list + at, D, D,
                tl.zeros((ROWS,), tl.int32), last - key, most - key, scale,
                True, D, BLOCK_N, PRECISION,
            )  # fmt: skip

    kv_head = (head // heads_per_kv).to(tl.int64)
    k_own = k + kv_head * k_head_stride
    v_own = v + kv_head * v_head_stride
    # Own keys in front of the rows: whole blocks, those of LA tiles that are off left out. Where
    # rows of several documents share the tile, each sees others.
    own_start = _first_own(entry)
    tile_row = tl.load(entry + TILE_ROW, volatile=True)
    la_base = tl.load(entry + LA_BASE, volatile=True)
    la_stride = tl.load(entry + LA_STRIDE, volatile=True)
    shared = tl.load(entry + PIECE, volatile=True) < ROWS
    whole = tl.where(shared, 0, (begin - own_start) // BLOCK_N)
    packed = bits + la_base + (mask_row + mask_head).to(tl.int64) * la_stride
    triangle = tile_row * (tile_row + 1) // 2
    for block in range(whole):
        key = own_start + block * BLOCK_N
        tile_column = block * BLOCK_N // ROWS
        on = la_base < 0
        if NEIGHBOUR:
            on = on | (tile_column + 1 == tile_row)
        bit = (triangle + tile_column) * LEVELS
        value = tl.load(packed + bit // 8, mask=la_base >= 0, other=0).to(tl.int32)
        value = (value >> (8 - LEVELS - bit % 8)) & ((1 << LEVELS) - 1)
        on = on | (value >= tl.load(entry + LEVEL))
        if on:
            acc, top, total = _visit(
                acc, top, total, q_rows,
                k_own + key.to(tl.int64) * k_row_stride, v_own + key.to(tl.int64) * v_row_stride,
                k_row_stride, v_row_stride, row, row, BLOCK_N, scale,
                False, D, BLOCK_N, PRECISION,
            )  # fmt: skip
    # The rest, up to the last row's own key, under the mask.
    own = _own(entry)
    rest = own_start + whole * BLOCK_N
    for block in range(tl.cdiv(end - rest, BLOCK_N)):
        key = rest + block * BLOCK_N
        acc, top, total = _visit(
            acc, top, total, q_rows,
            k_own + key.to(tl.int64) * k_row_stride, v_own + key.to(tl.int64) * v_row_stride,
            k_row_stride, v_row_stride, own - key, row - key, end - key, scale,
            True, D, BLOCK_N, PRECISION,
        )  # fmt: skip

    # Where to store is read again: registers are scarce in the loops.
    entry = row_tiles + tl.program_id(0) * COLUMNS
    place = tl.load(entry + ROW, volatile=True)
    first = tl.load(entry + FIRST, volatile=True)
    stop = tl.load(entry + STOP, volatile=True)
    of_tile = tl.arange(0, ROWS)
    wanted = (of_tile >= first) & (of_tile < stop)
    local = (place + of_tile).to(tl.int64)[:, None]
    out_at = out + head.to(tl.int64) * out_head_stride + local * out_row_stride + column[None, :]
    tl.store(out_at, (acc / total[:, None]).to(out.dtype.element_ty), mask=wanted[:, None])
    if WITH_LSE:
        lse_at = lse + head.to(tl.int64) * rows + place + of_tile
        tl.store(lse_at, (top + tl.log2(total)) * LN2, mask=wanted)


def sparse_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: DevicePlan,
    layer: int,
    row_start: int = 0,
    scale: float | None = None,
    with_lse: bool = False,
    block_n: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend as `reference.sparse_attention` does; also return the log-sum-exp if wanted.

    q: [heads, R, D]; k, v: [kv_heads, row_start + R, D], float16, bfloat16 or float32, contiguous
    along D, a power of two from 16. Returns [heads, R, D] and natural log-sum-exp, float32
    [heads, R] ([0] where not wanted). Launches two kernels and waits for neither. Arguments are
    checked by `dispatch.attend`.
    """
    work = plan.chunk(row_start, row_start + q.shape[1]).work
    pair = (triton_compaction.compact, partial(attend_to_lists, block_n=block_n))
    return attend_through_lists(*pair, q, k, v, work, layer, scale, with_lse)


def attend_to_work(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    work: Work,
    layer: int,
    scale: float | None = None,
    with_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend all rows of a `Work`, of one prompt or several; returns as `sparse_attention`.

    q: [heads, R, D]; k, v: [kv_heads, N, D]. Results of rows of q that are in no tile are as the
    memory was.
    """
    pair = (triton_compaction.compact, attend_to_lists)
    return attend_through_lists(*pair, q, k, v, work, layer, scale, with_lse)


def attend_to_lists(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_list: torch.Tensor,
    v_list: torch.Tensor,
    row_tiles: torch.Tensor,
    counts: torch.Tensor,
    starts: torch.Tensor,
    bits: torch.Tensor,
    *,
    dense: int,
    keys: int,
    layer: int,
    levels: int,
    neighbour: bool,
    scale: float,
    with_lse: bool,
    block_n: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend to compacted lists [mask_heads, capacity, D] and to the rows' own keys.

    counts, starts: int32 [mask_heads, slots] of one layer. The other names are those of `Work` and
    its layout; `dense` and `keys` are not needed here. Returns as `sparse_attention`.
    """
    heads, rows, dim = q.shape
    mask_heads, slots = counts.shape
    out = q.new_empty(rows, heads, dim).transpose(0, 1)  # as projections take it
    lse = q.new_empty((heads, rows) if with_lse else (0,), dtype=torch.float32)
    if not row_tiles.shape[0]:
        return out, lse
    _attend_tile[(row_tiles.shape[0], heads)](
        q,
        k,
        v,
        k_list,
        v_list,
        out,
        lse,
        row_tiles,
        counts,
        starts,
        bits,
        rows,
        layer * mask_heads,
        slots,
        k_list.shape[1],
        scale * math.log2(math.e),
        *(stride for x in (q, k, v, out) for stride in (x.stride(0), x.stride(1))),
        heads // k.shape[0],
        heads // mask_heads,
        LEVELS=levels,
        NEIGHBOUR=neighbour,
        WITH_LSE=with_lse,
        D=dim,
        BLOCK_N=block_n or _keys_per_block(q),
        PRECISION="ieee",
        num_warps=8,
        num_stages=2,
    )
    return out, lse


def _keys_per_block(q: torch.Tensor) -> int:
    """Return how many keys a block holds: q's tile and two stages of K and V must fit."""
    if q.device.type == "cpu":
        return TILE
    properties = torch.cuda.get_device_properties(q.device)
    # What a kernel may ask for beyond the default, where the platform knows the difference.
    default = properties.shared_memory_per_block
    shared = int(getattr(properties, "shared_memory_per_block_optin", default))
    row = q.shape[2] * q.element_size()
    fitting = (n for n in (128, 64, 32) if (TILE + 4 * n) * row <= shared)
    return next(fitting, 16)
