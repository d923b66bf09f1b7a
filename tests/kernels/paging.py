"""Caches as engines lay them out, filled with keys in pages of a random order."""

import torch

from sift_index.kernels.paged import PagedKV, write

LAYOUTS = ("two tensors", "pages, k and v", "k and v, pages", "head-major")


def empty_cache(
    layout: str, pages: int, size: int, heads: int, dim: int, dtype=torch.float32, device="cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return views [pages, size, heads, dim] of one layer's K and V that hold NaN."""

    def made(*shape: int) -> torch.Tensor:
        return torch.full(shape, float("nan"), dtype=dtype, device=device)

    if layout == "two tensors":
        return made(pages, size, heads, dim), made(pages, size, heads, dim)
    if layout == "pages, k and v":
        cache = made(pages, 2, size, heads, dim)
        return cache[:, 0], cache[:, 1]
    if layout == "k and v, pages":
        cache = made(2, pages, size, heads, dim)
        return cache[0], cache[1]
    cache = made(2, pages, heads, size, dim)
    return cache[0].transpose(1, 2), cache[1].transpose(1, 2)


def table_of(tokens: int, size: int, pages: int, seed: int = 0, device="cpu") -> torch.Tensor:
    """Return int32 pages for `tokens` positions, in a random order, and one more than needed."""
    order = torch.randperm(pages, generator=torch.Generator().manual_seed(seed))
    return order[: -(-tokens // size) + 1].to(torch.int32).to(device)


def paged(
    k: torch.Tensor, v: torch.Tensor, size: int, layout: str = "two tensors", seed: int = 0
) -> PagedKV:
    """Return k, v [kv_heads, N, D] written into a cache with room for twice as much."""
    heads, tokens, dim = k.shape
    pages = 2 * (-(-tokens // size)) + 2
    cache = empty_cache(layout, pages, size, heads, dim, k.dtype, k.device)
    kv = PagedKV(*cache, table_of(tokens, size, pages, seed, k.device))
    write_from(kv, 0, k.transpose(0, 1), v.transpose(0, 1))
    return kv


def write_from(kv: PagedKV, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
    """Write k, v [R, kv_heads, D] to positions [start, start + R)."""
    position, size = torch.arange(start, start + len(k), device=k.device), kv.k.shape[1]
    write(kv.k, kv.v, kv.table[position // size], position % size, k, v)
