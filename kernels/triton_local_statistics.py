"""The LA statistic of packed documents in Triton: what their own rows attend to, tile by tile.

A program holds one tile of keys of one head and lets the rows behind them stream past, tile row by
tile row (S^T = K Q^T). The mean over a window of rows is then a sum along a thread's own registers,
and only one number per tile leaves a program. `statistics.local_scores` is the truth; import this
module only where Triton is installed.
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
# Columns of `LocalTables.programs`: the document's first token, its tokens, the tile of keys, the
# document's first entry.
START, TOKENS, COLUMN, ENTRY = (tl.constexpr(number) for number in range(4))
COLUMNS = tl.constexpr(4)
# Query rows that stream past a tile of keys at once; a window lies in one block.
ROWS = 64


@dataclass(frozen=True, eq=False)
class LocalTables:
    """What the kernel knows of a batch of documents, the same for all layers.

    programs: int32 [tiles of keys, 4], those with the most rows behind them first.
    """

    triangles: Sections
    page_size: int
    programs: torch.Tensor = field(repr=False)


def local_tables(
    packed: Packed, dense_tiles: int, page_size: int, device: torch.device
) -> LocalTables:
    """Return the tables of a batch with a document of more than `dense_tiles` tiles."""
    triangles = packed.triangles(dense_tiles)
    programs = [
        (rows.start, n, column, entry)
        for rows, n, entry, count in zip(
            packed.rows, packed.lengths, triangles.starts, triangles.counts, strict=False
        )
        if count
        for column in range(-(-n // TILE_TOKENS))
    ]
    programs.sort(key=lambda program: program[1] // TILE_TOKENS - program[2], reverse=True)
    (on_device,) = upload_tables((np.array(programs),), device)
    return LocalTables(triangles, page_size, on_device)


@triton.jit  # type: ignore[untyped-decorator]
def _tile_score(  # type: ignore[no-untyped-def]
    k_tile, q, lse, start, tile_row, first_key, tokens, q_row_stride, scale, sizes,
    MASKED: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, WINDOW: tl.constexpr,
    PAGE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the score of one tile of the document that begins at token `start` (int64).

    MASKED: for the tile on the diagonal, and for the last tile row, which may be short.
    """
    best = tl.zeros((TILE,), tl.float32)
    for part in tl.static_range(TILE // ROWS):
        first = tile_row * TILE + part * ROWS
        offset = tl.arange(0, ROWS)
        at = q + (start + first) * q_row_stride
        at += offset[:, None] * q_row_stride + tl.arange(0, D)[None, :]
        lse_at = lse + start + first + offset
        if MASKED:
            known = first + offset < tokens
            q_rows = tl.load(at, mask=known[:, None], other=0.0)
            log_total = tl.load(lse_at, mask=known, other=float("inf"))
        else:
            q_rows = tl.load(at)
            log_total = tl.load(lse_at)
        scores = tl.dot(k_tile, tl.trans(q_rows), input_precision=PRECISION)  # [TILE, ROWS]
        p = tl.exp2(scores * scale - log_total[None, :] * LOG2E)
        if MASKED:
            seen = (first_key + tl.arange(0, TILE))[:, None] <= (first + offset)[None, :]
            p = tl.where(seen, p, 0.0)
        if WINDOW == ROWS:
            means = tl.sum(p, 1) / tl.maximum(tl.minimum(tokens - first, WINDOW), 1)
        else:
            begin = first + tl.arange(0, ROWS // WINDOW) * WINDOW
            rows = tl.maximum(tl.minimum(tokens - begin, WINDOW), 1)
            windows = tl.sum(tl.reshape(p, (TILE, ROWS // WINDOW, WINDOW)), 2)
            means = tl.max(windows / rows[None, :], 1)
        best = tl.maximum(best, means)
    return tl.max(tl.sum(tl.reshape(best, (TILE // PAGE, PAGE)), 1) / sizes, 0)


@triton.jit(do_not_specialize=["entries"])  # type: ignore[untyped-decorator]
def _local_tiles(  # type: ignore[no-untyped-def]
    q,  # [heads, T, D]
    k,  # [kv_heads, T, D]
    lse,  # float32 [heads, T], contiguous along T
    programs,  # int32 [programs, 4]
    out,  # float32 [heads, entries]
    entries,
    scale,  # times log2(e)
    heads_per_kv,
    q_head_stride,
    q_row_stride,
    k_head_stride,
    k_row_stride,
    lse_head_stride,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    WINDOW: tl.constexpr,
    PAGE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Score one column of tiles of one head."""
    program = programs + tl.program_id(0) * COLUMNS
    start = tl.load(program + START).to(tl.int64)
    tokens, column = tl.load(program + TOKENS), tl.load(program + COLUMN)
    head = tl.program_id(1).to(tl.int64)
    first_key = column * TILE
    key = tl.arange(0, TILE)
    k += (head // heads_per_kv) * k_head_stride + (start + first_key) * k_row_stride
    k_at = k + key[:, None] * k_row_stride + tl.arange(0, D)[None, :]
    k_tile = tl.load(k_at, mask=(first_key + key < tokens)[:, None], other=0.0)
    q += head * q_head_stride
    lse += head * lse_head_stride
    sizes = tokens - first_key - tl.arange(0, TILE // PAGE) * PAGE
    sizes = tl.maximum(tl.minimum(sizes, PAGE), 1)
    out += head * entries + tl.load(program + ENTRY) + column

    score = _tile_score(
        k_tile, q, lse, start, column, first_key, tokens, q_row_stride, scale, sizes,
        True, D, ROWS, WINDOW, PAGE, PRECISION,
    )  # fmt: skip
    tl.store(out + column * (column + 1) // 2, score)
    whole = tokens // TILE
    for tile_row in range(column + 1, whole):
        score = _tile_score(
            k_tile, q, lse, start, tile_row, first_key, tokens, q_row_stride, scale, sizes,
            False, D, ROWS, WINDOW, PAGE, PRECISION,
        )  # fmt: skip
        tl.store(out + tile_row * (tile_row + 1) // 2, score)
    if (tokens % TILE > 0) & (column < whole):
        score = _tile_score(
            k_tile, q, lse, start, whole, first_key, tokens, q_row_stride, scale, sizes,
            True, D, ROWS, WINDOW, PAGE, PRECISION,
        )  # fmt: skip
        tl.store(out + whole * (whole + 1) // 2, score)


def local_scores(
    q: torch.Tensor,
    k: torch.Tensor,
    lse: torch.Tensor,
    tables: LocalTables,
    window: int,
    scale: float,
) -> torch.Tensor:
    """Return `statistics.local_scores` of every long document, [heads, triangles.total].

    q: [heads, T, D]; k: [kv_heads, T, D]; lse: float32 [heads, T] of the packed sequence, as for
    one document; all contiguous along their last dimension.
    """
    heads, _, dim = q.shape
    out = q.new_zeros(heads, tables.triangles.total, dtype=torch.float32)
    _local_tiles[(tables.programs.shape[0], heads)](
        q,
        k,
        lse,
        tables.programs,
        out,
        out.shape[1],
        scale * math.log2(math.e),
        heads // k.shape[0],
        q.stride(0),
        q.stride(1),
        k.stride(0),
        k.stride(1),
        lse.stride(0),
        D=dim,
        ROWS=max(ROWS, window),
        WINDOW=window,
        PAGE=tables.page_size,
        PRECISION=dot_precision(),
        num_warps=4,
        num_stages=2 if q.dtype != torch.float32 else 1,
    )
    return out
