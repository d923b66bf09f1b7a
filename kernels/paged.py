"""Paged KV: attention of a prompt's rows where an engine keeps keys and values in pages.

A KV page holds `KV page size` consecutive positions of one request, anywhere in the cache; a page
table says where. (The pages of masks are others: those of a document.) Listed keys are compacted
straight from the pages. What the kernels want contiguous is every row's own keys: a chunk inside
spans needs those from the first span's start, or its boundary window, on; rows of glue, the query
and decoding need all. Only these are copied, to the place in a `Room` that their position names.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec

import torch

from sift_index.kernels import dispatch, library_attention
from sift_index.kernels.compaction import kv_head_of, listed_keys
from sift_index.kernels.device_plan import DevicePlan
from sift_index.kernels.lists import Pair, attend_through_lists


@dataclass(frozen=True, eq=False)
class PagedKV:
    """One layer's cache, and the pages of one request in position order.

    k, v: [KV pages, KV page size, kv_heads, D], contiguous along D, other strides free, so that
    views of joined or head-major caches will do. table: int32 [n]; position p is row p % size of
    page table[p // size].
    """

    k: torch.Tensor
    v: torch.Tensor
    table: torch.Tensor


@dataclass(frozen=True, eq=False)
class Room:
    """Where a chunk's own keys lie side by side: k, v [tokens, kv_heads, D], position p in row p.

    Rows that no chunk asked for hold anything finite: a kernel may multiply them by a weight of
    zero. One forward pass can use one room for all layers and requests, one after the other.
    """

    k: torch.Tensor
    v: torch.Tensor

    @classmethod
    def like(cls, kv: PagedKV, tokens: int) -> "Room":
        """Return room for positions below `tokens`, rounded up to whole KV pages."""
        size, heads, dim = kv.k.shape[1:]
        shape = (-(-tokens // size) * size, heads, dim)
        return cls(kv.k.new_zeros(shape), kv.v.new_zeros(shape))


def write(
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    page: torch.Tensor,
    row: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
) -> None:
    """Write k, v [R, kv_heads, D] to rows `row` of KV pages `page`, both int32 or int64 [R].

    k_pages, v_pages: as in `PagedKV`, of the type of k and v; changed in place.
    """
    k_pages[page, row] = k
    v_pages[page, row] = v


def compact(
    k: torch.Tensor,
    v: torch.Tensor,
    table: torch.Tensor,
    page_start: torch.Tensor,
    offsets: torch.Tensor,
    keys: int,
    capacity: int,
) -> Pair:
    """Return the listed rows of a paged cache, [mask_heads, capacity, D] each.

    k, v, table: as in `PagedKV`. The other arguments and the results are those of
    `compaction.compact` for a prompt of `keys` positions.
    """
    size = k.shape[1]
    source = listed_keys(page_start, offsets, capacity, keys)
    page = table[source // size] if keys else source
    head = kv_head_of(offsets.shape[0], k.shape[2], k.device)[:, None]
    return k[page, source % size, head], v[page, source % size, head]


def gather(
    k: torch.Tensor,
    v: torch.Tensor,
    table: torch.Tensor,
    start: int,
    stop: int,
    k_out: torch.Tensor,
    v_out: torch.Tensor,
) -> None:
    """Copy positions [start, stop) of a paged cache to rows [start, stop) of k_out and v_out.

    k, v, table: as in `PagedKV`; k_out, v_out: as in `Room`, contiguous. Whole KV pages are copied,
    so that rows beside the range may change too.
    """
    size = k.shape[1]
    first, last = start // size, -(-stop // size)
    for pages, out in ((k, k_out), (v, v_out)):
        rows = out[first * size : last * size].unflatten(0, (last - first, size))
        torch.index_select(pages, 0, table[first:last], out=rows)


def first_own_key(plan: DevicePlan, row_start: int, row_stop: int, path: str) -> int:
    """Return from which position on rows [row_start, row_stop) need contiguous keys.

    path: which implementation attends (`dispatch.PATHS`); the reference needs them all.
    """
    return 0 if path == dispatch.REFERENCE else plan.chunk(row_start, row_stop).first_own


def path_of(
    q: torch.Tensor, room: Room, plan: DevicePlan, row_stop: int, scale: float | None = None
) -> str:
    """Return which implementation attends rows q [heads, R, D] that end in front of row_stop."""
    k, v = (x[:row_stop].transpose(0, 1) for x in (room.k, room.v))
    choice = dispatch.choose(q, k, v, plan, scale)
    dispatch.announce(choice)
    return choice.path


@torch.no_grad()
def paged_attention(
    q: torch.Tensor,
    kv: PagedKV,
    plan: DevicePlan,
    layer: int,
    row_start: int,
    room: Room | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, int]:
    """Attend rows [row_start, row_start + R) of a prompt whose keys and values are all in pages.

    q: [heads, R, D]. Returns what `dispatch.attend` returns for contiguous keys, [heads, R, D], and
    the first position that was copied to the room; where it is not 0, listed keys came straight
    from the pages. room: for at least row_start + R tokens, made anew where None. Raises as
    `dispatch.attend`.
    """
    stop = row_start + q.shape[1]
    room = Room.like(kv, stop) if room is None else room
    path = path_of(q, room, plan, stop, scale)
    first = first_own_key(plan, row_start, stop, path)
    _gather(q.device.type)(kv.k, kv.v, kv.table, first, stop, room.k, room.v)
    k, v = (x[:stop].transpose(0, 1) for x in (room.k, room.v))
    if not first:  # all keys are there
        return dispatch.attend(q, k, v, plan, layer, row_start, scale), 0
    listed = partial(_listed_of, kv)
    if path == dispatch.LIBRARY:
        attend = partial(library_attention.sparse_attention, compact=listed)
        return attend(q, k, v, plan, layer, row_start, scale)[0], first
    pair = (listed, dispatch.implementation(path).attend_to_lists)
    work = plan.chunk(row_start, stop).work
    return attend_through_lists(*pair, q, k, v, work, layer, scale, False)[0], first


def _listed_of(
    kv: PagedKV,
    k: torch.Tensor,
    v: torch.Tensor,
    page_start: torch.Tensor,
    page_length: torch.Tensor,
    offsets: torch.Tensor,
    capacity: int,
    page_size: int,
) -> Pair:
    """Do what `triton_compaction.compact` does, with pages in the place of k and v.

    Of k only the number of keys counts.
    """
    return _compaction(k.device.type)(
        kv.k, kv.v, kv.table, page_start, offsets, k.shape[1], capacity, page_size
    )


@lru_cache
def _compaction(device_type: str) -> Callable[..., Pair]:
    if _in_triton(device_type):
        from sift_index.kernels import triton_paged

        return triton_paged.compact
    return lambda *arguments: compact(*arguments[:-1])


@lru_cache
def _gather(device_type: str) -> Callable[..., None]:
    if _in_triton(device_type):
        from sift_index.kernels import triton_paged

        return triton_paged.gather
    return gather


def _in_triton(device_type: str) -> bool:
    return device_type == "cuda" and find_spec("triton") is not None
