"""Gather-compaction in Triton: one program copies one page of one head to its place in the list.

Import this module only where Triton is installed; `compaction.compact` is its truth.
"""

import torch
import triton
import triton.language as tl


# Host integers that change with every prompt and chunk: specialised, each would compile anew.
@triton.jit(do_not_specialize=["keys", "capacity", "offsets_stride"])  # type: ignore[untyped-decorator]
def _copy_page(  # type: ignore[no-untyped-def]
    k,  # [kv_heads, N, D]
    v,
    k_list,  # [mask_heads, capacity, D], contiguous
    v_list,
    page_start,  # int32 [P]
    page_length,
    offsets,  # int32 [mask_heads, P + 1]
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
):
    page, head = tl.program_id(0), tl.program_id(1)
    at = tl.load(offsets + head * offsets_stride + page)
    after = tl.load(offsets + head * offsets_stride + page + 1)
    if after > at:
        row = tl.arange(0, PAGE)
        column = tl.arange(0, BLOCK_D)[None, :]
        source = tl.load(page_start + page) + row
        target = at + row
        kept = (row < tl.load(page_length + page)) & (source < keys) & (target < capacity)
        kept = kept[:, None] & (column < D)
        kv_head = (head // heads_per_kv).to(tl.int64)
        read = source.to(tl.int64)[:, None]
        write = (head.to(tl.int64) * capacity + target)[:, None] * D + column
        k_rows = tl.load(k + kv_head * k_head_stride + read * k_row_stride + column, mask=kept)
        v_rows = tl.load(v + kv_head * v_head_stride + read * v_row_stride + column, mask=kept)
        tl.store(k_list + write, k_rows, mask=kept)
        tl.store(v_list + write, v_rows, mask=kept)


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

    The last dimension of k and v must be contiguous, as offsets' must; other strides are free.
    """
    heads, dim = offsets.shape[0], k.shape[2]
    lists = [x.new_empty(heads, capacity, dim) for x in (k, v)]
    if page_start.shape[0] and capacity:
        _copy_page[(page_start.shape[0], heads)](
            k,
            v,
            *lists,
            page_start,
            page_length,
            offsets,
            k.shape[1],
            capacity,
            k.stride(0),
            k.stride(1),
            v.stride(0),
            v.stride(1),
            offsets.stride(0),
            heads // k.shape[0],
            D=dim,
            BLOCK_D=triton.next_power_of_2(dim),
            PAGE=triton.next_power_of_2(page_size),
        )
    return lists[0], lists[1]
