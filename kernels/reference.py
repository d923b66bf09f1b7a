"""Sparse-prefill attention in plain torch: the truth every faster implementation is tested against.

One tile of rows at a time, so no L x L matrix exists. On a CPU only the marked keys are gathered
and computed, head by head; on a GPU a block's heads run together under a mask.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention

from sift_index.kernels.bits import la_tiles, tile_of
from sift_index.kernels.ca_list import ca_list, glue_keys
from sift_index.kernels.dense import grouped_scores, later_keys
from sift_index.kernels.plan import RowBlock, SparsePlan, row_blocks

# Blocks whose masks are written out together: 2,048 rows, 16 M cells a head at 8K tokens.
MASK_BLOCKS = 16


def sparse_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: SparsePlan,
    layer: int,
    row_start: int = 0,
    scale: float | None = None,
) -> torch.Tensor:
    """Attend rows [row_start, row_start + R) of a prompt to the keys its plan marks.

    q: [heads, R, D]; k, v: [kv_heads, N, D] with N = row_start + R, unrepeated. Returns
    [heads, R, D] in q's dtype. Rows at or behind the plan's length are dense. Rules: DESIGN
    section 3.
    """
    marked = MarkedKeys(plan, layer, q.device)
    blocks = row_blocks(plan, row_start, row_start + q.shape[1])
    attend_blocks = _under_masks if q.device.type == "cuda" else _by_gathering
    return attend_blocks(q, k, v, marked, blocks, scale)


def sparse_log_sum_exp(
    q: torch.Tensor,
    k: torch.Tensor,
    plan: SparsePlan,
    layer: int,
    row_start: int = 0,
    scale: float | None = None,
) -> torch.Tensor:
    """Return the natural log-sum-exp of the scores `sparse_attention` visits, float32 [heads, R].

    With it, attention to other keys can be merged in. Arguments as in `sparse_attention`.
    """
    marked, parts = MarkedKeys(plan, layer, q.device), [q.new_empty(q.shape[0], 0).float()]
    scale = q.shape[2] ** -0.5 if scale is None else scale
    for block in row_blocks(plan, row_start, row_start + q.shape[1]):
        rows = slice(block.begin - row_start, block.end - row_start)
        # [heads, rows of the block, keys up to its last row]
        scores = grouped_scores(q[:, rows], k[:, : block.end], scale)
        scores[..., block.begin :].masked_fill_(
            later_keys(block.end - block.begin, q.device), float("-inf")
        )
        if block.span is not None:
            scores.masked_fill_(~marked.of(block)[:, None], float("-inf"))
        parts.append(scores.logsumexp(-1))
    return torch.cat(parts, dim=1)


def _by_gathering(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    marked: "MarkedKeys",
    blocks: list[RowBlock],
    scale: float | None,
) -> torch.Tensor:
    """Attend block by block and head by head to the marked keys alone: little to compute."""
    out = torch.empty_like(q)
    group, row_start = q.shape[0] // k.shape[0], k.shape[1] - q.shape[1]
    for block in blocks:
        rows = slice(block.begin - row_start, block.end - row_start)
        if block.span is None:
            keys = torch.arange(block.end, device=q.device)
            out[:, rows] = attend(q[:, rows], k[:, : block.end], v[:, : block.end], keys, scale)
            continue
        for head, on in enumerate(marked.of(block)):
            keys, kv = on.nonzero()[:, 0], slice(head // group, head // group + 1)
            out[head, rows] = attend(q[head, None, rows], k[kv, keys], v[kv, keys], keys, scale)[0]
    return out


def _under_masks(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    marked: "MarkedKeys",
    blocks: list[RowBlock],
    scale: float | None,
) -> torch.Tensor:
    """Attend many blocks at once under a mask: nothing is saved, but nothing waits for the device.

    Gathering would have to learn the number of keys of every head and block from the GPU.
    """
    group, row_start = q.shape[0] // k.shape[0], k.shape[1] - q.shape[1]
    keys, values = (x.repeat_interleave(group, dim=0)[None] for x in (k, v))
    out = torch.empty_like(q)
    for some in (blocks[at : at + MASK_BLOCKS] for at in range(0, len(blocks), MASK_BLOCKS)):
        begin, end = some[0].begin, some[-1].end
        mask = torch.ones(end - begin, end, dtype=torch.bool, device=q.device).tril(begin)
        mask = mask.repeat(q.shape[0], 1, 1)
        for block in (block for block in some if block.span is not None):
            rows = slice(block.begin - begin, block.end - begin)
            mask[:, rows, : block.end] &= marked.of(block)[:, None]
        rows = slice(begin - row_start, end - row_start)
        out[:, rows] = scaled_dot_product_attention(
            q[None, :, rows], keys[:, :, :end], values[:, :, :end], attn_mask=mask, scale=scale
        )[0]
    return out


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor, scale: float | None
) -> torch.Tensor:
    """Causal attention of rows to keys at given positions, the last row's own key included.

    q: [H, R, D]; k, v: [Hkv, n, D] at ascending positions `keys` [n], of which the last is the
    last row's. Returns [H, R, D].
    """
    rows = keys[-1] - torch.arange(q.shape[1] - 1, -1, -1, device=q.device)
    causal = keys <= rows[:, None]
    return scaled_dot_product_attention(
        q[None], k[None], v[None], attn_mask=causal, scale=scale, enable_gqa=True
    )[0]


class MarkedKeys:
    """The keys that the rows of a span's tile may see, for one layer; causality comes on top."""

    def __init__(self, plan: SparsePlan, layer: int, device: torch.device) -> None:
        self._plan = plan
        self._layer = layer
        self._device = device
        self._outside_window: torch.Tensor | None = None
        self._tiles_of: tuple[int, torch.Tensor] | None = None

    def of(self, block: RowBlock) -> torch.Tensor:
        """Return bool [heads, block.end] for a block of a span: the union of rules 1 to 4."""
        index = block.span or 0
        return torch.cat((self._earlier(index, block.tile_row), self._own(index, block)), dim=-1)

    def _earlier(self, index: int, tile_row: int) -> torch.Tensor:
        """Return bool [heads, span start]: rules 1 and 3, and rule 4 for the first tile."""
        if self._outside_window is None:
            kept = ca_list(self._plan, self._layer).kept
            self._outside_window = kept | glue_keys(self._plan, self._device)
        keys = self._outside_window[:, : self._plan.spans[index].start]
        if tile_row == 0:
            keys = keys.clone()
            keys[:, self._plan.window_start(index) :] = True
        return keys

    def _own(self, index: int, block: RowBlock) -> torch.Tensor:
        """Return bool [heads, keys of the span up to the block's end]: rule 2."""
        span = self._plan.spans[index]
        if self._tiles_of is None or self._tiles_of[0] != index:
            tiles = la_tiles(span, self._layer, self._plan.layout, self._plan.level)
            self._tiles_of = (index, tiles)
        row = self._tiles_of[1][:, block.tile_row]
        return row[:, tile_of(block.end - span.start, self._device)]
