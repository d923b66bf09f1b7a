"""Sparse-prefill attention by two calls of an attention library, for GPUs of any generation.

The rows of a span see two kinds of keys. Their own are contiguous and end at the diagonal: one
causal call over all heads, whatever the masks. The listed ones are a prefix of what compaction lays
out per head: one more call in which each span and mask head is an entry, and many entries share a
list. The results are merged by their log-sum-exp. Glue is dense, all in the first call.

No attention kernel of this project is involved (`varlen`), hence what a library cannot do is out
of reach: spans whose own attention is sparse (`obstacle`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch

from sift_index.formats.errors import PlanError, UsageError
from sift_index.kernels import compaction, varlen
from sift_index.kernels.device_plan import Chunk, DevicePlan, upload_tables
from sift_index.kernels.lists import Pair
from sift_index.kernels.plan import TILE, SparsePlan
from sift_index.kernels.prompt_tables import EMPTY_SLOT, Ints, TileTable
from sift_index.kernels.varlen import KEY_BLOCK, MAX_ENTRIES, Backend


def obstacle(plan: DevicePlan | SparsePlan) -> str | None:
    """Return why no library can attend as a plan says, or None. Costs a look at every span."""
    source = plan.source if isinstance(plan, DevicePlan) else plan
    entries = cursor = 0
    for number, span in enumerate(source.spans):
        if span.la is not None:
            return f"span {number} is sparse in itself, which attention libraries cannot express"
        # A first tile, the rest, and glue between it and the span before.
        entries += 1 + (span.tokens > TILE) + (span.start > cursor)
        cursor = span.stop
    if entries * source.layout.mask_heads > MAX_ENTRIES:
        return (
            f"{len(source.spans)} spans for {source.layout.mask_heads} mask heads are more than "
            f"the {MAX_ENTRIES:,} sequences an attention library takes"
        )
    return None


@torch.no_grad()
def sparse_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: DevicePlan,
    layer: int,
    row_start: int = 0,
    scale: float | None = None,
    with_lse: bool = False,
    backend: Backend | None = None,
    compact: Callable[..., Pair] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend as `reference.sparse_attention` does; also return the log-sum-exp if wanted.

    q: [heads, R, D]; k, v: [kv_heads, row_start + R, D], of a type the backend takes
    (`varlen.best`, which also chooses where none is given), contiguous along D. compact: what lays
    out listed rows in place of `triton_compaction.compact`; with it, keys in front of the rows' own
    are not read from k and v. Returns
    [heads, R, D], in memory as the library leaves it, and natural log-sum-exp, float32 [heads, R]
    ([0] where not wanted). Waits for nothing, and keeps nothing for a backward pass. Other
    arguments are checked by `dispatch.attend`. Raises PlanError for a plan with an `obstacle`,
    UsageError where no backend runs or where mask heads are not a multiple of KV heads.
    """
    attend = _backend_for(q, k, plan, backend).attend
    scale = q.shape[2] ** -0.5 if scale is None else scale
    tables = _tables_of(plan, row_start, row_start + q.shape[1])
    own_q, own_k, own_v = (x.transpose(0, 1) for x in (q, k, v))
    out, lse = attend(own_q, own_k, own_v, *tables.own, scale, True)
    listed = tables.listed
    if listed is not None:
        lists = _compacted(compact or _compaction(k.device.type), k, v, plan, tables.chunk, layer)
        other = _attend_to_lists(attend, q[:, listed.rows], *lists, listed, layer, scale)
        _merge(out[listed.rows], lse[:, listed.rows], *other)
    return out.transpose(0, 1), lse if with_lse else lse.new_empty(0)


class _Own(NamedTuple):
    """The entries of the causal call, as `varlen.Attend` names them: one per segment."""

    cu_q: torch.Tensor
    k_start: torch.Tensor
    k_used: torch.Tensor
    max_q: int
    max_k: int


@dataclass(frozen=True, eq=False)
class _Listed:
    """The entries of the call over lists: one per mask head and segment, segments running faster.

    rows: the chunk's rows from the first to the last that may take a listed key; glue between
    spans is among them and takes none. k_used: int32 [layers, entries].
    """

    rows: slice
    cu_q: torch.Tensor
    k_start: torch.Tensor
    k_used: torch.Tensor
    max_q: int
    max_k: int


@dataclass(frozen=True, eq=False)
class _Tables:
    """What one chunk of a plan asks of a library, the same for all layers of a forward pass."""

    chunk: Chunk
    own: _Own
    listed: _Listed | None


class _Segments(NamedTuple):
    """int64 [E] each: rows that begin to see keys at the same one and take the same list prefix.

    begin, end: rows, relative to the chunk's first. own_start: their first own key. slot: the
    prefix (`TileTable.slot`).
    """

    begin: Ints
    end: Ints
    own_start: Ints
    slot: Ints


# The tables of the chunk asked for last; a plan that nobody holds any more takes its own along.
_last: WeakKeyDictionary[DevicePlan, _Tables] = WeakKeyDictionary()


def _tables_of(plan: DevicePlan, row_start: int, row_stop: int) -> _Tables:
    """Return the tables of a chunk. Raises PlanError where the plan has an `obstacle`."""
    chunk, found = plan.chunk(row_start, row_stop), _last.get(plan)
    if found is None or found.chunk != chunk:
        reason = obstacle(plan)
        if reason is not None:
            raise PlanError(
                f"expected a plan that attention libraries can run, found that {reason}; "
                "use the Triton kernel or the reference"
            )
        segments = _segments(plan.tiles, chunk, plan.length)
        found = _Tables(chunk, _own(segments, chunk, plan), _listed(segments, chunk, plan))
        _last[plan] = found
    return found


def _own(segments: _Segments, chunk: Chunk, plan: DevicePlan) -> _Own:
    used = segments.end + chunk.row_start - segments.own_start
    cu_q = np.append(segments.begin, chunk.row_stop - chunk.row_start)
    tables = upload_tables((cu_q, segments.own_start, used), plan.device)
    longest = (_longest(segments), int(used.max(initial=0)))
    return _Own(tables[0], tables[1], tables[2], *longest)


def _listed(segments: _Segments, chunk: Chunk, plan: DevicePlan) -> _Listed | None:
    """Return None where no row of the chunk takes a listed key, whatever the bits."""
    # A prefix of the list ends in front of the first own key; that of glue is empty.
    taking = np.flatnonzero(segments.own_start)
    if not len(taking):
        return None
    some = _Segments(*(column[taking[0] : taking[-1] + 1] for column in segments))
    first, stop = int(some.begin[0]), int(some.end[-1])
    heads = plan.layout.mask_heads
    head = np.arange(heads)[:, None]
    cu_q = np.append(head * (stop - first) + some.begin - first, heads * (stop - first))
    k_start = np.repeat(head * _capacity(chunk), len(some.slot))
    tables = upload_tables((cu_q, k_start, some.slot), plan.device)
    return _Listed(
        rows=slice(first, stop),
        cu_q=tables[0],
        k_start=tables[1],
        k_used=plan.counts.index_select(-1, tables[2]).flatten(1),
        max_q=_longest(some),
        max_k=int(some.own_start.max()),
    )


def _segments(tiles: TileTable, chunk: Chunk, length: int) -> _Segments:
    """Join a chunk's tiles that take the same keys, which in spans are all but the first."""
    known = slice(*tiles.covering(chunk.row_start, chunk.row_stop))
    begin = np.maximum(tiles.begin[known], chunk.row_start)
    end = np.minimum(tiles.end[known], chunk.row_stop)
    own_start, slot = tiles.own_start[known], tiles.slot[known]
    if chunk.row_stop > length and chunk.row_stop > chunk.row_start:
        # Rows behind the plan are dense, like glue.
        begin = np.append(begin, max(length, chunk.row_start))
        end = np.append(end, chunk.row_stop)
        own_start, slot = np.append(own_start, 0), np.append(slot, EMPTY_SLOT)
    at = np.flatnonzero(np.diff(slot, prepend=-1))
    last = np.append(at[1:], len(slot))[: len(at)] - 1
    return _Segments(
        begin[at] - chunk.row_start, end[last] - chunk.row_start, own_start[at], slot[at]
    )


def _longest(segments: _Segments) -> int:
    return int((segments.end - segments.begin).max(initial=0))


def _capacity(chunk: Chunk) -> int:
    """Return the rows of each head's list: all keys, and a block that no entry uses."""
    return chunk.list_stop + KEY_BLOCK


def _compacted(
    compact: Callable[..., Pair],
    k: torch.Tensor,
    v: torch.Tensor,
    plan: DevicePlan,
    chunk: Chunk,
    layer: int,
) -> Pair:
    """Return the listed rows of one layer, [mask_heads, capacity, D], finite behind each list."""
    return compact(
        k[:, : chunk.list_stop],
        v[:, : chunk.list_stop],
        plan.page_start[: chunk.pages],
        plan.page_length[: chunk.pages],
        plan.offsets[layer, :, : chunk.pages + 1],
        _capacity(chunk),
        plan.layout.page_size,
    )


@lru_cache
def _compaction(device_type: str) -> Callable[..., Pair]:
    """Return what copies only the listed rows, or where Triton is missing, as many as fit."""
    if device_type == "cuda" and find_spec("triton") is not None:
        from sift_index.kernels import triton_compaction

        return triton_compaction.compact
    return lambda *arguments: compaction.compact(*arguments[:-1])


def _attend_to_lists(
    attend: varlen.Attend,
    q: torch.Tensor,
    k_list: torch.Tensor,
    v_list: torch.Tensor,
    listed: _Listed,
    layer: int,
    scale: float,
) -> Pair:
    """Return [mask_heads * rows, group, D] and [group, mask_heads * rows].

    q: [heads, rows, D]. Heads that share a mask are the heads of an entry; its list has one head.
    """
    mask_heads, _, dim = k_list.shape
    return attend(
        q.unflatten(0, (mask_heads, -1)).transpose(1, 2).flatten(0, 1),
        k_list.view(-1, 1, dim),
        v_list.view(-1, 1, dim),
        listed.cu_q,
        listed.k_start,
        listed.k_used[layer],
        listed.max_q,
        listed.max_k,
        scale,
        False,
    )


def _merge(
    out: torch.Tensor, lse: torch.Tensor, other: torch.Tensor, other_lse: torch.Tensor
) -> None:
    """Add attention to listed keys to that to own ones, in place and in float32.

    out: [rows, heads, D]; lse: [heads, rows]; other: [mask_heads * rows, group, D]; other_lse:
    float32 [group, mask_heads * rows]. Each row has at least one own key.
    """
    split = (-1, other.shape[1])  # heads as [mask_heads, group]
    target = out.unflatten(1, split).transpose(0, 1)  # [mask_heads, rows, group, D]
    theirs = other_lse.unflatten(1, (-1, lse.shape[1])).transpose(0, 1)
    more = (theirs - lse.unflatten(0, split)).transpose(1, 2)[..., None]
    kept = target * torch.sigmoid(-more)
    torch.addcmul(kept, other.unflatten(0, target.shape[:2]), torch.sigmoid(more), out=target)
    torch.logaddexp(lse, theirs.flatten(0, 1), out=lse)


def _backend_for(
    q: torch.Tensor, k: torch.Tensor, plan: DevicePlan, backend: Backend | None
) -> Backend:
    """Return the backend to use, or raise UsageError as `sparse_attention` says."""
    if plan.layout.mask_heads % k.shape[0]:
        raise UsageError(
            f"expected mask heads to be a multiple of k's {k.shape[0]} heads, found "
            f"{plan.layout.mask_heads}; use the reference"
        )
    if backend is not None:
        return backend
    found = varlen.best(q.device, q.dtype, q.shape[2])
    if found.backend is None:
        raise UsageError(
            f"expected a call that an attention library can run, found none ({found.reason}); "
            "use the Triton kernel or the reference"
        )
    return found.backend
