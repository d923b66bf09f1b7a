"""Paged KV in Triton: listed rows to their lists, and ranges of positions to contiguous memory.

The kernels of `triton_compaction` with one more step: a position is looked up in the page table of
its request. Import this module only where Triton is installed; `paged` is its truth.
"""

import torch
import triton
import triton.language as tl

from sift_index.kernels.triton_compaction import (
    ROWS,
    VARYING,
    any_listed,
    clear_behind,
    copying,
    places,
)


@triton.jit  # type: ignore[untyped-decorator]
def _places_in(  # type: ignore[no-untyped-def]
    table, position, wanted, page_stride, row_stride, KV_PAGE: tl.constexpr
):
    """Return where the rows of some positions begin in one head of a cache, in elements."""
    page = tl.load(table + position // KV_PAGE, mask=wanted, other=0).to(tl.int64)
    return page * page_stride + (position % KV_PAGE).to(tl.int64) * row_stride


@triton.jit(do_not_specialize=VARYING)  # type: ignore[untyped-decorator]
def _copy_listed(  # type: ignore[no-untyped-def]
    k,  # [KV pages, KV_PAGE, kv_heads, D]
    v,
    k_list,  # [mask_heads, capacity, D], contiguous
    v_list,
    table,  # int32, the request's KV pages in position order
    page_start,  # int32 [P], pages of documents
    offsets,  # int32 [mask_heads, P + 1]
    pages,  # P
    keys,
    capacity,
    k_page_stride,
    k_row_stride,
    k_head_stride,
    v_page_stride,
    v_row_stride,
    v_head_stride,
    offsets_stride,
    heads_per_kv,
    KV_PAGE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
):
    head = tl.program_id(1)
    offsets += head * offsets_stride
    if any_listed(offsets, pages, PAGE, ROWS):
        column = tl.arange(0, BLOCK_D)[None, :]
        source, target, kept = places(page_start, offsets, pages, keys, capacity, PAGE, ROWS)
        kv_head = (head // heads_per_kv).to(tl.int64)
        k_at = kv_head * k_head_stride + _places_in(
            table, source, kept, k_page_stride, k_row_stride, KV_PAGE
        )
        v_at = kv_head * v_head_stride + _places_in(
            table, source, kept, v_page_stride, v_row_stride, KV_PAGE
        )
        write = (head.to(tl.int64) * capacity + target)[:, None] * D + column
        kept = kept[:, None] & (column < D)
        tl.store(k_list + write, tl.load(k + k_at[:, None] + column, mask=kept), mask=kept)
        tl.store(v_list + write, tl.load(v + v_at[:, None] + column, mask=kept), mask=kept)

    if tl.program_id(0) == 0:
        clear_behind(k_list, v_list, offsets, pages, capacity, head, D, BLOCK_D)


@triton.jit(do_not_specialize=["start", "stop"])  # type: ignore[untyped-decorator]
def _copy_range(  # type: ignore[no-untyped-def]
    k,  # [KV pages, KV_PAGE, kv_heads, D]
    v,
    k_out,  # [tokens, kv_heads, D], contiguous
    v_out,
    table,  # int32
    start,
    stop,
    k_page_stride,
    k_row_stride,
    k_head_stride,
    v_page_stride,
    v_row_stride,
    v_head_stride,
    KV_PAGE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
):
    head = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, BLOCK_D)[None, :]
    position = start + tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    wanted = position < stop
    k_at = head * k_head_stride + _places_in(
        table, position, wanted, k_page_stride, k_row_stride, KV_PAGE
    )
    v_at = head * v_head_stride + _places_in(
        table, position, wanted, v_page_stride, v_row_stride, KV_PAGE
    )
    write = (position.to(tl.int64) * tl.num_programs(1) + head)[:, None] * D + column
    wanted = wanted[:, None] & (column < D)
    tl.store(k_out + write, tl.load(k + k_at[:, None] + column, mask=wanted), mask=wanted)
    tl.store(v_out + write, tl.load(v + v_at[:, None] + column, mask=wanted), mask=wanted)


def compact(
    k: torch.Tensor,
    v: torch.Tensor,
    table: torch.Tensor,
    page_start: torch.Tensor,
    offsets: torch.Tensor,
    keys: int,
    capacity: int,
    page_size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do what `paged.compact` does; no page of a document may be longer than `page_size`.

    Up to 256 rows behind a head's list are zeros. offsets must be contiguous along its last
    dimension.
    """
    heads, (_, kv_page, kv_heads, dim) = offsets.shape[0], k.shape
    lists = [x.new_empty(heads, capacity, dim) for x in (k, v)]
    pages = page_start.shape[0]
    launch = copying(heads, pages, page_size, dim)
    if capacity:
        _copy_listed[launch.grid](
            k,
            v,
            *lists,
            table,
            page_start,
            offsets,
            pages,
            keys,
            capacity,
            *k.stride()[:3],
            *v.stride()[:3],
            offsets.stride(0),
            heads // kv_heads,
            KV_PAGE=kv_page,
            **launch.constants,
        )
    return lists[0], lists[1]


def gather(
    k: torch.Tensor,
    v: torch.Tensor,
    table: torch.Tensor,
    start: int,
    stop: int,
    k_out: torch.Tensor,
    v_out: torch.Tensor,
) -> None:
    """Do what `paged.gather` does; writes no other row."""
    _, kv_page, kv_heads, dim = k.shape
    if start < stop:
        _copy_range[(triton.cdiv(stop - start, ROWS), kv_heads)](
            k,
            v,
            k_out,
            v_out,
            table,
            start,
            stop,
            *k.stride()[:3],
            *v.stride()[:3],
            KV_PAGE=kv_page,
            D=dim,
            BLOCK_D=triton.next_power_of_2(dim),
            ROWS=ROWS,
        )
