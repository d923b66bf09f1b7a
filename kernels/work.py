"""What kernels read to attend some rows under plans: the same whether of one prompt or of several.

Keys of several prompts have places of their own in the same tensors k and v, and so have their
rows in q. Per head their lists lie one behind the other in one long list, each a stretch of it.
"""

from dataclasses import dataclass, field

import torch

from sift_index.kernels.plan import MaskLayout


@dataclass(frozen=True, eq=False)
class Work:
    """Tables for one call of every layer, on the device.

    page_start, page_length: int32 [P], the pages to compact, as keys of k and v.
    offsets: int32 [layers, mask_heads, P + 1], where each page's keys begin in the list.
    counts, starts: int32 [layers, mask_heads, slots], the keys in each list prefix and the entry of
        the list where it begins, which is where its prompt's does.
    row_tiles: int32 [tiles, 19], the tiles to run in launch order (`row_tiles`).
    bits: uint8 [bytes], packed LA bits.
    dense: how many of the first tiles see every key in front of them. capacity: keys that the
    lists of a head can hold. keys: keys of all prompts.
    """

    layout: MaskLayout
    page_start: torch.Tensor = field(repr=False)
    page_length: torch.Tensor = field(repr=False)
    offsets: torch.Tensor = field(repr=False)
    counts: torch.Tensor = field(repr=False)
    starts: torch.Tensor = field(repr=False)
    row_tiles: torch.Tensor = field(repr=False)
    bits: torch.Tensor = field(repr=False)
    dense: int
    capacity: int
    keys: int
