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
    heads, keys, offsets = offsets.shape[0], k.shape[1], offsets.contiguous()
    entry = torch.arange(capacity, device=k.device, dtype=offsets.dtype).expand(heads, -1)
    # The last page that begins at or in front of an entry is the one that holds it: pages that
    # are off begin where the next one does.
    page = torch.searchsorted(offsets, entry.contiguous(), right=True) - 1
    page = page.clamp(max=max(page_start.shape[0] - 1, 0))  # [mask_heads, capacity]
    source = page_start[page] + entry - offsets.gather(1, page)
    source = source.clamp(max=max(keys - 1, 0)).long()
    kv_head = torch.arange(heads, device=k.device) // (heads // k.shape[0])
    return k[kv_head[:, None], source], v[kv_head[:, None], source]
