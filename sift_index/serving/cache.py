"""What an engine's paged KV cache looks like on one rank, and the kinds that cannot be used.

K and V of a layer are [KV pages, page_size, kv_heads, head_dim] each. Caches that are laid out in
another way are views of it, which copy nothing:

    [2, pages, page_size, kv_heads, D]      k, v = cache[0], cache[1]
    [pages, 2, page_size, kv_heads, D]      k, v = cache[:, 0], cache[:, 1]
    [pages, kv_heads, page_size, D]         cache.transpose(1, 2), of each of both
    [tokens, kv_heads, D]                   cache.unflatten(0, (-1, page_size)), of each of both

vLLM's backends have one of the first two kinds (`get_kv_cache_shape` says which); a request's row
of its block table is a page table. SGLang's token pool has the last kind, and a table of tokens:
every page_size-th entry of a request's row of it, divided by page_size, is a page table.
"""

from dataclasses import dataclass

import torch

from sift_index.errors import UnsupportedModelError, UsageError

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class CacheSpec:
    """The cache of one rank. page_size: positions of a KV page; kv_heads: those of this rank.

    sliding_window: what the engine declares for its layers; only None can be served. Raises
    UsageError for numbers and dtypes that cannot be, UnsupportedModelError for a window.
    """

    page_size: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    sliding_window: int | None = None

    def __post_init__(self) -> None:
        for name in ("page_size", "kv_heads", "head_dim"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise UsageError(
                    f"{name}: expected a whole number from 1, found {value!r}; pass what the "
                    "engine allocates its cache with"
                )
        if self.dtype not in DTYPES:
            raise UsageError(
                f"the KV cache: expected {', '.join(map(str, DTYPES))}, found {self.dtype}; sparse "
                "prefill reads no quantised keys: start the engine with an unquantised KV cache"
            )
        if self.sliding_window is not None:
            raise UnsupportedModelError(
                f"expected layers that attend to all earlier keys, found a sliding window of "
                f"{self.sliding_window}; such layers already skip the keys an index would mark"
            )

    @property
    def row_bytes(self) -> int:
        """Bytes of one position's keys and values in one layer."""
        return 2 * self.kv_heads * self.head_dim * self.dtype.itemsize

    def check(self, k: torch.Tensor, v: torch.Tensor, device: torch.device) -> None:
        """Raise unless k and v are one layer's cache of this kind on `device`."""
        for name, x in (("k_cache", k), ("v_cache", v)):
            self._check_shape(name, x)
            if x.dtype != self.dtype or x.device != device:
                raise UsageError(
                    f"{name}: expected {self.dtype} on {device}, found {x.dtype} on {x.device}; "
                    "pass the cache that the layer was made for"
                )
            if x.stride(3) != 1 and self.head_dim > 1:
                raise UsageError(
                    f"{name}: expected a stride of 1 along head_dim, found {x.stride(3)}; pass a "
                    "view whose last dimension is contiguous"
                )
        if k.shape != v.shape:
            raise UsageError(
                f"expected as many KV pages for k as for v, found {k.shape[0]} and {v.shape[0]}; "
                "pass the two views of one layer's cache"
            )

    def _check_shape(self, name: str, x: torch.Tensor) -> None:
        if list(x.shape[1:]) == [self.kv_heads, self.head_dim]:
            raise UsageError(
                f"{name}: expected [pages, page_size, kv_heads, head_dim], found {list(x.shape)}, "
                f"one row a token; pass {name}.unflatten(0, (-1, {self.page_size}))"
            )
        if x.ndim == 3:
            raise UnsupportedModelError(
                f"{name}: expected [pages, page_size, kv_heads, head_dim], found {list(x.shape)}, "
                "as multi-head latent attention (MLA) has; there are no per-head keys to mark"
            )
        expected = [self.page_size, self.kv_heads, self.head_dim]
        if list(x.shape[1:]) != expected:
            raise UsageError(
                f"{name}: expected [pages, {', '.join(map(str, expected))}], found "
                f"{list(x.shape)}; pass a view as `sift_index.serving.cache` lists them"
            )
