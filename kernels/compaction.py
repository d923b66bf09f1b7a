"""Gather-compaction of one layer: the listed K and V rows of each head, one behind the other.

With it the hot loop of any attention kernel reads contiguous keys: no page lists, no partial
pages, any page size. This is the torch form, for any device and as the truth for the Triton one.
"""

import torch


def compact(
    k: torch.Tensor,
    v: torch.Tensor,
    page_start: torch.Tensor,
    page_length: torch.Tensor,
    offsets: torch.Tensor,
    capacity: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the listed rows of k and v, [mask_heads, capacity, D] each, in k's dtype.

    k, v: [kv_heads, N, D]; page_start, page_length: int32 [P]; offsets: int32 [mask_heads, P + 1]
    of one layer (`DevicePlan`), where mask_heads is a multiple of kv_heads. Keys at or behind N,
    and list entries at or behind `capacity`, are left out; rows behind a head's list hold anything.
    """
    source = listed_keys(page_start, offsets, capacity, k.shape[1])
    head = kv_head_of(offsets.shape[0], k.shape[0], k.device)[:, None]
    return k[head, source], v[head, source]


def listed_keys(
    page_start: torch.Tensor, offsets: torch.Tensor, capacity: int, keys: int
) -> torch.Tensor:
    """Return int64 [mask_heads, capacity]: the key of each list entry, any below `keys` behind."""
    heads, offsets = offsets.shape[0], offsets.contiguous()
    entry = torch.arange(capacity, device=offsets.device, dtype=offsets.dtype).expand(heads, -1)
    # The last page that begins at or in front of an entry is the one that holds it: pages that
    # are off begin where the next one does.
    page = torch.searchsorted(offsets, entry.contiguous(), right=True) - 1
    page = page.clamp(max=max(page_start.shape[0] - 1, 0))  # [mask_heads, capacity]
    source = page_start[page] + entry - offsets.gather(1, page)
    return source.clamp(max=max(keys - 1, 0)).long()


def kv_head_of(mask_heads: int, kv_heads: int, device: torch.device) -> torch.Tensor:
    """Return int64 [mask_heads]: the KV head that each mask head's keys come from."""
    return torch.arange(mask_heads, device=device) // (mask_heads // kv_heads)
