"""Attention to compacted key lists in plain torch, from the very tables the Triton kernel reads.

It is what the custom operator does on a CPU, tile by tile and head by head, and shows that lists
and tables say what `reference.sparse_attention` computes from a plan.
"""

import torch

from sift_index.kernels import device_plan as columns
from sift_index.kernels.dense import grouped_scores
from sift_index.kernels.plan import TILE


def attend_to_lists(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_list: torch.Tensor,
    v_list: torch.Tensor,
    order: torch.Tensor,
    row_tiles: torch.Tensor,
    counts: torch.Tensor,
    bits: torch.Tensor,
    *,
    dense: int,
    length: int,
    row_start: int,
    layer: int,
    level: int,
    levels: int,
    neighbour: bool,
    scale: float,
    with_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do what `triton_attention.attend_to_lists` does; reads the tables on the host."""
    heads, rows, dim = q.shape
    out = q.new_empty(rows, heads, dim).transpose(0, 1)  # as projections take it
    lse = q.new_empty((heads, rows) if with_lse else (0,), dtype=torch.float32)
    bit_rows = _Bits(bits, level, levels, neighbour)
    for entry in _entries(row_tiles, order, length):
        begin, end = max(entry[columns.BEGIN], row_start), min(entry[columns.END], row_start + rows)
        local = slice(begin - row_start, end - row_start)
        for head in range(heads):
            mask_head, kv = head * len(counts) // heads, head * len(k) // heads
            count = int(counts[mask_head, entry[columns.SLOT]])
            own = bit_rows.own_keys(entry, layer * len(counts) + mask_head, end).to(q.device)
            keys = torch.cat((k_list[mask_head, :count], k[kv, own]))
            values = torch.cat((v_list[mask_head, :count], v[kv, own]))
            # Listed keys lie in front of every row of the tile.
            at = torch.nn.functional.pad(own, (count, 0), value=-1)
            later = at > torch.arange(begin, end, device=q.device)[:, None]
            scores = grouped_scores(q[head, None, local], keys[None], scale)[0]
            scores.masked_fill_(later, float("-inf"))
            out[head, local] = (scores.softmax(-1) @ values.float()).to(q.dtype)
            if with_lse:
                lse[head, local] = scores.logsumexp(-1)
    return out, lse


def _entries(row_tiles: torch.Tensor, order: torch.Tensor, length: int) -> list[list[int]]:
    """Return the rows of the table for some tiles, and dense ones for those behind it."""
    table = row_tiles.tolist()
    return [
        table[tile] if tile < len(table) else _behind(length + TILE * (tile - len(table)))
        for tile in order.tolist()
    ]


def _behind(begin: int) -> list[int]:
    entry = [0] * columns.ROW_COLUMNS
    entry[columns.BEGIN], entry[columns.END] = begin, begin + TILE
    entry[columns.LA_BASE] = columns.DENSE
    return entry


class _Bits:
    """The packed LA bits of all spans."""

    def __init__(self, bits: torch.Tensor, level: int, levels: int, neighbour: bool) -> None:
        self._bits, self._level, self._levels, self._neighbour = bits, level, levels, neighbour

    def own_keys(self, entry: list[int], row: int, end: int) -> torch.Tensor:
        """Return int64 [keys]: the contiguous piece's keys in front of `end` whose tile is on."""
        keys = torch.arange(entry[columns.OWN_START], end)
        if entry[columns.LA_BASE] == columns.DENSE:
            return keys
        tile_row = entry[columns.TILE_ROW]
        on = [self._on(entry, row, tile_row, column) for column in range(tile_row)] + [True]
        return keys[torch.tensor(on)[(keys - entry[columns.OWN_START]) // TILE]]

    def _on(self, entry: list[int], row: int, tile_row: int, column: int) -> bool:
        if self._neighbour and column == tile_row - 1:
            return True
        bit = (tile_row * (tile_row + 1) // 2 + column) * self._levels
        byte = int(self._bits[entry[columns.LA_BASE] + row * entry[columns.LA_STRIDE] + bit // 8])
        return byte >> (8 - self._levels - bit % 8) & ((1 << self._levels) - 1) >= self._level
