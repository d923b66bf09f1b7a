"""The CA statistic of packed documents in Triton: what the probe bank's rows attend to in each.

Three kernels. One turns the documents' keys next to the probe and lays them out in whole tiles. One
sums, for each probe row and document, what the document's keys take of the row's attention. The
last holds a tile of keys, lets the probe's rows stream past (S^T = K Q^T, so that a maximum over
rows stays in a thread's own registers) and writes a number per page. No scores leave a program, and
nothing is added atomically. `statistics.probe_scores` is the truth; import this module only where
Triton is installed.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
import triton
import triton.language as tl

from sift_index.kernels.device_plan import upload_tables
from sift_index.kernels.packed import Packed, Sections
from sift_index.kernels.plan import TILE as TILE_TOKENS
from sift_index.kernels.triton_precision import dot_precision

TILE = tl.constexpr(TILE_TOKENS)
LOG2E = tl.constexpr(math.log2(math.e))
# A key whose odds against the probe's own keys exceed 2^100 takes all attention either way, and
# float32 can still sum 2^27 of them.
MOST = tl.constexpr(100.0)
# Columns of `ProbeTables.tiles`: document, its first token of the tile, tokens, first page.
DOCUMENT, FIRST, COUNT, PAGE_AT = (tl.constexpr(number) for number in range(4))
TILE_COLUMNS = tl.constexpr(4)
# Keys that are scored against a block of probe rows at once, when rows are summed.
KEYS = 64
# Probe rows that stream past a tile of keys at once; a window lies in one block.
ROWS = 64


@dataclass(frozen=True, eq=False)
class ProbeTables:
    """What the kernels know of a batch of documents, the same for all layers.

    tiles: int32 [tiles, 4]. documents: int32 [documents, 2], first tile and tokens. cos, sin:
    float32 [documents, rotary pairs], which turn a document's keys back by its length.
    """

    pages: Sections
    page_size: int
    tiles: torch.Tensor = field(repr=False)
    documents: torch.Tensor = field(repr=False)
    cos: torch.Tensor = field(repr=False)
    sin: torch.Tensor = field(repr=False)


def probe_tables(packed: Packed, page_size: int, inverse_frequencies: torch.Tensor) -> ProbeTables:
    """Return the tables of a batch, on the device of the frequencies."""
    device, pages = inverse_frequencies.device, packed.pages(page_size)
    tiles = [
        (number, rows.start + at, min(TILE_TOKENS, n - at), pages.starts[number] + at // page_size)
        for number, (rows, n) in enumerate(zip(packed.rows, packed.lengths, strict=True))
        for at in range(0, n, TILE_TOKENS)
    ]
    counts = np.array([-(-n // TILE_TOKENS) for n in packed.lengths])
    documents = np.stack((np.cumsum(counts) - counts, np.array(packed.lengths)), axis=1)
    of_tiles, of_documents = upload_tables((np.array(tiles), documents), device)
    angle = -of_documents[:, 1:].double() * inverse_frequencies.double()
    cos, sin = angle.cos().float(), angle.sin().float()
    return ProbeTables(pages, page_size, of_tiles, of_documents, cos, sin)


@triton.jit  # type: ignore[untyped-decorator]
def _turn_tile(  # type: ignore[no-untyped-def]
    k,  # [kv_heads, T, D]
    turned,  # [kv_heads, tiles * TILE, D], contiguous
    tiles,  # int32 [tiles, 4]
    cos,  # float32 [documents, HALF]
    sin,
    capacity,  # tiles * TILE
    k_head_stride,
    k_row_stride,
    largest,  # of turned's type
    D: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    """Turn one tile's keys of one KV head; zeros stand behind the document's end."""
    tile, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    document = tl.load(tiles + tile * TILE_COLUMNS + DOCUMENT)
    first = tl.load(tiles + tile * TILE_COLUMNS + FIRST).to(tl.int64)
    count = tl.load(tiles + tile * TILE_COLUMNS + COUNT)
    row = tl.arange(0, TILE)[:, None]
    pair = tl.arange(0, BLOCK_HALF)
    at = k + head * k_head_stride + first * k_row_stride + row * k_row_stride
    to = turned + (head * capacity + tile * TILE) * D + row * D
    wanted = (row < count) & (pair < HALF)[None, :]
    a = tl.load(at + pair[None, :], mask=wanted, other=0.0).to(tl.float32)
    b = tl.load(at + HALF + pair[None, :], mask=wanted, other=0.0).to(tl.float32)
    c = tl.load(cos + document * HALF + pair, mask=pair < HALF, other=0.0)[None, :]
    s = tl.load(sin + document * HALF + pair, mask=pair < HALF, other=0.0)[None, :]
    kind = turned.dtype.element_ty
    inside = (row < TILE) & (pair < HALF)[None, :]
    tl.store(to + pair[None, :], tl.clamp(a * c - b * s, -largest, largest).to(kind), inside)
    to_b = to + HALF + pair[None, :]
    tl.store(to_b, tl.clamp(b * c + a * s, -largest, largest).to(kind), inside)
    if D > 2 * HALF:  # dimensions that are not rotary
        rest = (2 * HALF + tl.arange(0, BLOCK_REST))[None, :]
        x = tl.load(at + rest, mask=(row < count) & (rest < D), other=0.0).to(tl.float32)
        tl.store(to + rest, tl.clamp(x, -largest, largest).to(kind), (row < TILE) & (rest < D))


@triton.jit  # type: ignore[untyped-decorator]
def _odds(  # type: ignore[no-untyped-def]
    q, k_at, reference, stop, scale, D: tl.constexpr, KEYS: tl.constexpr,
    MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return float32 [rows]: summed odds of a block of keys against the probe's own keys."""
    key = tl.arange(0, KEYS)
    k_block = tl.load(k_at + key[:, None] * D + tl.arange(0, D)[None, :])
    scores = tl.dot(q, tl.trans(k_block), input_precision=PRECISION) * scale  # [rows, KEYS]
    odds = tl.exp2(tl.minimum(scores - reference[:, None], MOST))
    if MASKED:
        odds = tl.where((key < stop)[None, :], odds, 0.0)
    return tl.sum(odds, 1)


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _probe_total(  # type: ignore[no-untyped-def]
    q,  # [heads, rows, D], contiguous
    lse,  # float32 [heads, rows], contiguous: of the probe's own keys
    turned,  # [kv_heads, tiles * TILE, D], contiguous
    documents,  # int32 [documents, 2]
    total,  # float32 [documents, heads, rows]: log-sum-exp with the document's keys, base 2
    rows,
    capacity,
    scale,  # times log2(e)
    heads_per_kv,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sum a document's keys for a block of probe rows of one head."""
    head, document = tl.program_id(1), tl.program_id(2)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first_tile = tl.load(documents + document * 2)
    keys = tl.load(documents + document * 2 + 1)
    at = (head * rows + row).to(tl.int64)
    q_at = q + at[:, None] * D + tl.arange(0, D)[None, :]
    q_rows = tl.load(q_at, mask=(row < rows)[:, None], other=0.0)
    reference = tl.load(lse + at, mask=row < rows, other=0.0) * LOG2E
    kv_head = (head // heads_per_kv).to(tl.int64)
    k_at = turned + (kv_head * capacity + first_tile * TILE) * D

    odds = tl.zeros((ROWS,), tl.float32)
    for block in range(keys // KEYS):
        block_at = k_at + block * (KEYS * D)
        odds += _odds(q_rows, block_at, reference, KEYS, scale, D, KEYS, False, PRECISION)
    left = keys % KEYS
    if left > 0:
        block_at = k_at + (keys - left) * D
        odds += _odds(q_rows, block_at, reference, left, scale, D, KEYS, True, PRECISION)
    to = (document * tl.num_programs(1) + head).to(tl.int64) * rows + row
    tl.store(total + to, reference + tl.log2(1.0 + odds), mask=row < rows)


@triton.jit(do_not_specialize=["rows", "pages"])  # type: ignore[untyped-decorator]
def _probe_pages(  # type: ignore[no-untyped-def]
    q,  # [heads, rows, D], contiguous
    total,  # float32 [documents, heads, rows]
    turned,  # [kv_heads, tiles * TILE, D], contiguous
    tiles,  # int32 [tiles, 4]
    out,  # float32 [heads, pages]
    rows,
    pages,
    capacity,
    scale,  # times log2(e)
    heads_per_kv,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    WINDOW: tl.constexpr,
    PAGE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Score the pages of one tile of keys for one head."""
    tile, head = tl.program_id(0), tl.program_id(1)
    document = tl.load(tiles + tile * TILE_COLUMNS + DOCUMENT)
    count = tl.load(tiles + tile * TILE_COLUMNS + COUNT)
    page_at = tl.load(tiles + tile * TILE_COLUMNS + PAGE_AT)
    key, column = tl.arange(0, TILE), tl.arange(0, D)
    kv_head = (head // heads_per_kv).to(tl.int64)
    k_tile = tl.load(
        turned + (kv_head * capacity + tile * TILE) * D + key[:, None] * D + column[None, :]
    )
    q_at = q + head.to(tl.int64) * rows * D
    total_at = total + (document * tl.num_programs(1) + head).to(tl.int64) * rows

    # Per key and place in the block: the highest logarithm so far, or the highest window's sum.
    best = tl.full((TILE, ROWS // WINDOW), float("-inf"), tl.float32)
    for block in range(tl.cdiv(rows, ROWS)):
        row = block * ROWS + tl.arange(0, ROWS)
        wanted = row < rows
        at = q_at + row[:, None] * D + column[None, :]
        q_rows = tl.load(at, mask=wanted[:, None], other=0.0)
        log_total = tl.load(total_at + row, mask=wanted, other=float("inf"))
        scores = tl.dot(k_tile, tl.trans(q_rows), input_precision=PRECISION) * scale  # [TILE, ROWS]
        x = scores - log_total[None, :]
        if WINDOW == 1:  # one exponential at the end will do
            best = tl.maximum(best, x)
        else:
            p = tl.reshape(tl.exp2(x), (TILE, ROWS // WINDOW, WINDOW))
            best = tl.maximum(best, tl.sum(p, 2))
    top = tl.max(best, 1)
    # What `MOST` cut off must not count for more than all attention.
    p = tl.exp2(tl.minimum(top, 0.0)) if WINDOW == 1 else tl.minimum(top / WINDOW, 1.0)
    probability = tl.where(key < count, p, 0.0)
    sums = tl.sum(tl.reshape(probability, (TILE // PAGE, PAGE)), 1)
    page = tl.arange(0, TILE // PAGE)
    size = tl.minimum(count - page * PAGE, PAGE)
    to = out + head.to(tl.int64) * pages + page_at + page
    tl.store(to, sums / tl.maximum(size, 1), mask=size > 0)


def probe_scores(
    q: torch.Tensor,
    lse: torch.Tensor,
    k: torch.Tensor,
    tables: ProbeTables,
    window: int,
    scale: float,
) -> torch.Tensor:
    """Return `statistics.probe_scores` of every document, float32 [heads, pages.total].

    q: [heads, rows, D] probe queries in whole windows; lse: float32 [heads, rows]; k:
    [kv_heads, T, D] of the packed sequence where its tokens stand, contiguous along D. Turned keys
    and queries are multiplied in float16 where k is of 16 bits, with float32 sums: a bfloat16 has
    no bit that is lost, and a key turned in float32 keeps 11 bits instead of 8.
    """
    kind = torch.float32 if k.dtype == torch.float32 else torch.float16
    q, lse = q.to(kind).contiguous(), lse.contiguous()
    turned = turned_keys(k, tables, kind)
    total = _totals(q, lse, turned, tables, scale)
    heads, rows, dim = q.shape
    out = q.new_zeros(heads, tables.pages.total, dtype=torch.float32)
    _probe_pages[(tables.tiles.shape[0], heads)](
        q,
        total,
        turned,
        tables.tiles,
        out,
        rows,
        tables.pages.total,
        turned.shape[1],
        scale * math.log2(math.e),
        heads // k.shape[0],
        D=dim,
        ROWS=max(ROWS, window),
        WINDOW=window,
        PAGE=tables.page_size,
        PRECISION=dot_precision(),
        num_warps=4,
        num_stages=3 if kind == torch.float16 else 1,
    )
    return out


def turned_keys(k: torch.Tensor, tables: ProbeTables, kind: torch.dtype) -> torch.Tensor:
    """Return [kv_heads, tiles * 128, D]: each document's keys turned back by its length.

    Every document begins with a tile; zeros fill its last.
    """
    kv_heads, _, dim = k.shape
    tiles, half = tables.tiles.shape[0], tables.cos.shape[1]
    turned = k.new_empty(kv_heads, tiles * TILE_TOKENS, dim, dtype=kind)
    _turn_tile[(tiles, kv_heads)](
        k,
        turned,
        tables.tiles,
        tables.cos,
        tables.sin,
        turned.shape[1],
        k.stride(0),
        k.stride(1),
        torch.finfo(kind).max,
        D=dim,
        HALF=half,
        BLOCK_HALF=triton.next_power_of_2(half),
        BLOCK_REST=triton.next_power_of_2(max(1, dim - 2 * half)),
    )
    return turned


def _totals(
    q: torch.Tensor, lse: torch.Tensor, turned: torch.Tensor, tables: ProbeTables, scale: float
) -> torch.Tensor:
    """Return float32 [documents, heads, rows]: log-sum-exp of probe and document, base 2."""
    heads, rows, dim = q.shape
    documents = tables.documents.shape[0]
    block = TILE_TOKENS
    total = q.new_empty(documents, heads, rows, dtype=torch.float32)
    _probe_total[(triton.cdiv(rows, block), heads, documents)](
        q,
        lse,
        turned,
        tables.documents,
        total,
        rows,
        turned.shape[1],
        scale * math.log2(math.e),
        heads // turned.shape[0],
        D=dim,
        ROWS=block,
        KEYS=KEYS,
        PRECISION=dot_precision(),
        num_warps=8,
        num_stages=3 if q.dtype == torch.float16 else 1,
    )
    return total
