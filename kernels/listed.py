"""Attention to compacted key lists in plain torch, from the very tables the Triton kernel reads.

It is what the custom operator does on a CPU, tile by tile and head by head, and shows that lists
and tables say what `reference.sparse_attention` computes from a plan.
"""

import torch

from sift_index.kernels import row_tiles as columns
from sift_index.kernels.dense import grouped_scores
from sift_index.kernels.plan import TILE


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
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do what `triton_attention.attend_to_lists` does; reads the tables on the host."""
    heads, rows, dim = q.shape
    out = q.new_empty(rows, heads, dim).transpose(0, 1)  # as projections take it
    lse = q.new_empty((heads, rows) if with_lse else (0,), dtype=torch.float32)
    bit_rows = _Bits(bits, levels, neighbour)
    for entry in row_tiles.tolist():
        begin, row = entry[columns.BEGIN], entry[columns.ROW]
        for piece in columns.pieces_of(entry):
            wanted = slice(row + piece.first, row + piece.stop)
            end = begin + piece.stop
            at_rows = torch.arange(begin + piece.first, end, device=q.device)[:, None]
            for head in range(heads):
                mask_head, kv = head * len(counts) // heads, head * len(k) // heads
                start, count = (int(x[mask_head, piece.slot]) for x in (starts, counts))
                listed, bit_row = slice(start, start + count), layer * len(counts) + mask_head
                own = bit_rows.own_keys(entry, piece.own_start, bit_row, end).to(q.device)
                seen_keys = torch.cat((k_list[mask_head, listed], k[kv, own]))
                values = torch.cat((v_list[mask_head, listed], v[kv, own]))
                # Listed keys lie in front of every row of the piece.
                at = torch.nn.functional.pad(own, (count, 0), value=-1)
                scores = grouped_scores(q[head, None, wanted], seen_keys[None], scale)[0]
                scores.masked_fill_(at > at_rows, float("-inf"))
                out[head, wanted] = (scores.softmax(-1) @ values.float()).to(q.dtype)
                if with_lse:
                    lse[head, wanted] = scores.logsumexp(-1)
    return out, lse


class _Bits:
    """The packed LA bits of all spans."""

    def __init__(self, bits: torch.Tensor, levels: int, neighbour: bool) -> None:
        self._bits, self._levels, self._neighbour = bits, levels, neighbour

    def own_keys(self, entry: list[int], own_start: int, row: int, end: int) -> torch.Tensor:
        """Return int64 [keys]: those of [own_start, end) whose tile is on."""
        keys = torch.arange(own_start, end)
        if entry[columns.LA_BASE] == columns.DENSE:
            return keys
        tile_row = entry[columns.TILE_ROW]
        on = [self._on(entry, row, tile_row, column) for column in range(tile_row)] + [True]
        return keys[torch.tensor(on)[(keys - own_start) // TILE]]

    def _on(self, entry: list[int], row: int, tile_row: int, column: int) -> bool:
        if self._neighbour and column == tile_row - 1:
            return True
        bit = (tile_row * (tile_row + 1) // 2 + column) * self._levels
        byte = int(self._bits[entry[columns.LA_BASE] + row * entry[columns.LA_STRIDE] + bit // 8])
        value = byte >> (8 - self._levels - bit % 8) & ((1 << self._levels) - 1)
        return value >= entry[columns.LEVEL]
