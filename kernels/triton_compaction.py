"""Gather-compaction in Triton: a program copies some pages of one head to their places in the list.

Behind the list come zeros: attention reads it in blocks, and a weight of zero does not hide a value
that is not a number. Import this module only where Triton is installed; `compaction.compact` is its
truth.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

# Rows a program copies; more where a page is longer. Of few most programs find nothing to do.
ROWS = 64
# Zeros behind a list: as many keys as the longest block of an attention that reads it.
PAD = tl.constexpr(256)


@triton.jit  # type: ignore[untyped-decorator]
def any_listed(offsets, pages, PAGE: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return whether one of this program's pages is on: mostly none, where lists are short."""
    first = tl.program_id(0) * (ROWS // PAGE)
    return tl.load(offsets + first) < tl.load(offsets + tl.minimum(first + ROWS // PAGE, pages))


@triton.jit  # type: ignore[untyped-decorator]
def places(  # type: ignore[no-untyped-def]
    page_start, offsets, pages, keys, capacity, PAGE: tl.constexpr, ROWS: tl.constexpr
):
    """Return this program's keys, their entries in one head's list, and which are to be copied."""
    row = tl.arange(0, ROWS)
    page = tl.program_id(0) * (ROWS // PAGE) + row // PAGE
    known = page < pages
    at = tl.load(offsets + page, mask=known, other=0)
    after = tl.load(offsets + page + 1, mask=known, other=0)
    source = tl.load(page_start + page, mask=known, other=0) + row % PAGE
    target = at + row % PAGE
    return source, target, (target < after) & (source < keys) & (target < capacity)


@triton.jit  # type: ignore[untyped-decorator]
def clear_behind(  # type: ignore[no-untyped-def]
    k_list, v_list, offsets, pages, capacity, head, D: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Write zeros behind one head's list."""
    column = tl.arange(0, BLOCK_D)[None, :]
    padded = tl.load(offsets + pages) + tl.arange(0, PAD)
    behind = (padded < capacity)[:, None] & (column < D)
    write = (head.to(tl.int64) * capacity + padded)[:, None] * D + column
    zeros = tl.zeros((PAD, BLOCK_D), k_list.dtype.element_ty)
    tl.store(k_list + write, zeros, mask=behind)
    tl.store(v_list + write, zeros, mask=behind)


# Host integers that change with every prompt and chunk: specialised, each would compile anew.
VARYING = ["pages", "keys", "capacity", "offsets_stride"]


@triton.jit(do_not_specialize=VARYING)  # type: ignore[untyped-decorator]
def _copy_pages(  # type: ignore[no-untyped-def]
    k,  # [kv_heads, N, D]
    v,
    k_list,  # [mask_heads, capacity, D], contiguous
    v_list,
    page_start,  # int32 [P]
    page_length,
    offsets,  # int32 [mask_heads, P + 1]
    pages,  # P
    keys,  # N
    capacity,
    k_head_stride,
    k_row_stride,
    v_head_stride,
    v_row_stride,
    offsets_stride,
    heads_per_kv,
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
        kept = kept[:, None] & (column < D)
        kv_head = (head // heads_per_kv).to(tl.int64)
        read = source.to(tl.int64)[:, None]
        write = (head.to(tl.int64) * capacity + target)[:, None] * D + column
        k_rows = tl.load(k + kv_head * k_head_stride + read * k_row_stride + column, mask=kept)
        v_rows = tl.load(v + kv_head * v_head_stride + read * v_row_stride + column, mask=kept)
        tl.store(k_list + write, k_rows, mask=kept)
        tl.store(v_list + write, v_rows, mask=kept)

    if tl.program_id(0) == 0:
        clear_behind(k_list, v_list, offsets, pages, capacity, head, D, BLOCK_D)


class Copying(NamedTuple):
    """A launch that copies listed rows: programs by pages and heads, and what is compiled in."""

    grid: tuple[int, int]
    constants: dict[str, int]


def copying(heads: int, pages: int, page_size: int, dim: int) -> Copying:
    """Return the launch for lists of `heads` heads of `pages` pages, none above `page_size`."""
    page = triton.next_power_of_2(page_size)
    rows = max(ROWS, page)
    constants = {"D": dim, "BLOCK_D": triton.next_power_of_2(dim), "PAGE": page, "ROWS": rows}
    return Copying((max(1, triton.cdiv(pages, rows // page)), heads), constants)


def compact(
    k: torch.Tensor,
    v: torch.Tensor,
    page_start: torch.Tensor,
    page_length: torch.Tensor,
    offsets: torch.Tensor,
    capacity: int,
    page_size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do what `compaction.compact` does; no page may be longer than `page_size`.

    Up to 256 rows behind a head's list are zeros. The last dimension of k and v must be contiguous,
    as offsets' must; other strides are free.
    """
    heads, dim = offsets.shape[0], k.shape[2]
    lists = [x.new_empty(heads, capacity, dim) for x in (k, v)]
    pages = page_start.shape[0]
    launch = copying(heads, pages, page_size, dim)
    if capacity:
        _copy_pages[launch.grid](
            k,
            v,
            *lists,
            page_start,
            page_length,
            offsets,
            pages,
            k.shape[1],
            capacity,
            k.stride(0),
            k.stride(1),
            v.stride(0),
            v.stride(1),
            offsets.stride(0),
            heads // k.shape[0],
            **launch.constants,
        )
    return lists[0], lists[1]
