"""Tensor parallelism: the heads of one rank, and the part of a plan's masks that is theirs.

A rank holds a run of query heads and the KV heads they read. Where there are more ranks than KV
heads, several ranks hold a copy of the same one. Masks are cut before they are uploaded.
"""

from dataclasses import dataclass, replace

import torch

from sift_index.errors import UsageError
from sift_index.kernels.api import MaskLayout, SparsePlan


@dataclass(frozen=True)
class Shard:
    """Rank `rank` of `size` that share the heads of every layer. Raises UsageError otherwise."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        whole = type(self.rank) is int and type(self.size) is int
        if not whole or self.size < 1 or not 0 <= self.rank < self.size:
            raise UsageError(
                f"expected a rank of 0 to size - 1, found rank {self.rank!r} of {self.size!r}; "
                "pass the tensor-parallel rank and size"
            )


@dataclass(frozen=True)
class HeadSlice:
    """The heads of one rank, as ranges of the model's heads, KV heads and mask heads."""

    heads: range
    kv_heads: range
    mask_heads: range

    @classmethod
    def of(cls, layout: MaskLayout, kv_heads: int, shard: Shard) -> "HeadSlice":
        """Return a rank's heads. Raises UsageError where ranks do not divide the heads."""
        _check_divides("query heads", layout.heads, shard.size)
        heads = layout.heads // shard.size
        own = range(shard.rank * heads, (shard.rank + 1) * heads)
        return cls(
            own,
            _holders("KV heads", kv_heads, layout.heads, own, shard.size),
            _holders("mask heads", layout.mask_heads, layout.heads, own, shard.size),
        )

    def of_layout(self, layout: MaskLayout) -> MaskLayout:
        """Return the layout of masks for these heads alone."""
        return replace(layout, heads=len(self.heads), mask_heads=len(self.mask_heads))

    def of_plan(self, plan: SparsePlan) -> SparsePlan:
        """Return the plan for these heads alone; its bits are views of the plan's."""
        if len(self.heads) == plan.layout.heads:
            return plan
        spans = (
            replace(span, ca=self._cut(span.ca), la=None if span.la is None else self._cut(span.la))
            for span in plan.spans
        )
        return replace(plan, layout=self.of_layout(plan.layout), spans=tuple(spans))

    def _cut(self, bits: torch.Tensor) -> torch.Tensor:
        """bits: uint8 [layers, mask_heads, bytes]."""
        return bits[:, self.mask_heads.start : self.mask_heads.stop]


def _holders(name: str, count: int, heads: int, own: range, size: int) -> range:
    """Return which of `count` heads, each shared by heads / count query heads, serve `own`."""
    if size <= count:
        _check_divides(name, count, size)
    elif size % count:
        raise UsageError(
            f"expected a number of ranks that is a multiple of the {count} {name}, found {size}; "
            "choose another tensor-parallel size"
        )
    group = heads // count
    return range(own.start // group, (own.stop - 1) // group + 1)


def _check_divides(name: str, count: int, size: int) -> None:
    if count % size:
        raise UsageError(
            f"expected a number of ranks that divides the {count} {name}, found {size}; choose "
            "another tensor-parallel size"
        )
