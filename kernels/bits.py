"""Packed bits in torch: the same bit order as the index format, on any device."""

import torch

from sift_index.kernels.plan import TILE, MaskLayout, SpanMask


def pack(values: torch.Tensor, levels: int) -> torch.Tensor:
    """Pack uint8 [..., n] values of `levels` bits into uint8 [..., n * levels / 8], MSB first.

    n must fill whole bytes; the inverse of `unpack`, and what `formats.bits.pack` does.
    """
    per_byte = 8 // levels
    shifts = torch.arange(8 - levels, -1, -levels, device=values.device, dtype=torch.uint8)
    # Bits of a byte do not overlap, so that their sum is their union.
    packed: torch.Tensor = (values.unflatten(-1, (-1, per_byte)) << shifts).sum(-1).to(torch.uint8)
    return packed


def unpack(packed: torch.Tensor, entries: int, levels: int) -> torch.Tensor:
    """Unpack uint8 [..., bytes] into uint8 [..., entries] values of `levels` bits, MSB first."""
    per_byte = 8 // levels
    shifts = torch.arange(8 - levels, -1, -levels, device=packed.device, dtype=torch.uint8)
    values = (packed[..., None] >> shifts) & ((1 << levels) - 1)
    return values.reshape(*packed.shape[:-1], packed.shape[-1] * per_byte)[..., :entries]


def ca_keys(span: SpanMask, layer: int, layout: MaskLayout, level: int) -> torch.Tensor:
    """Return bool [heads, tokens]: keys of the span that later spans attend to."""
    pages = -(-span.tokens // layout.page_size)
    on = unpack(span.ca[layer], pages, layout.levels) >= level
    keys = on.repeat_interleave(layout.page_size, dim=-1)[:, : span.tokens]
    return _per_query_head(keys, layout)


def la_tiles(span: SpanMask, layer: int, layout: MaskLayout, level: int) -> torch.Tensor:
    """Return bool [heads, tiles, tiles]: the tiles of the span's own triangle that are on."""
    count = span.tiles
    lower = torch.ones(count, count, dtype=torch.bool, device=span.ca.device).tril()
    if span.la is None:
        return lower.expand(layout.heads, count, count)
    values = unpack(span.la[layer], count * (count + 1) // 2, layout.levels) >= level
    tiles = torch.zeros(values.shape[0], count, count, dtype=torch.bool, device=values.device)
    tiles[:, lower] = values
    tiles |= _forced(count, layout, values.device)
    return _per_query_head(tiles, layout)


def _forced(count: int, layout: MaskLayout, device: torch.device) -> torch.Tensor:
    """Tiles that are on whatever the bits say: the diagonal, and its left neighbour."""
    row = torch.arange(count, device=device)
    distance = row[:, None] - row[None, :]
    return (distance == 0) | ((distance == 1) & layout.neighbour)


def _per_query_head(values: torch.Tensor, layout: MaskLayout) -> torch.Tensor:
    return values.repeat_interleave(layout.heads // layout.mask_heads, dim=0)


def tile_of(tokens: int, device: torch.device) -> torch.Tensor:
    """Return int64 [tokens]: the tile each key of a span falls into."""
    return torch.arange(tokens, device=device) // TILE
