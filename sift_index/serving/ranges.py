"""Which rows of which requests a forward pass computes, and what is wrong with them."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index

import torch

from sift_index.errors import PlanError, UsageError
from sift_index.kernels.api import MaskLayout
from sift_index.serving.cache import CacheSpec
from sift_index.serving.handle import RequestHandle


@dataclass(frozen=True, eq=False)
class RowRange:
    """Rows [row_start, row_start + rows) of a request: a chunk of its prompt, or decoding.

    page_table: int32 [n], contiguous, the request's KV pages in position order, at least up to the
    last row; more are ignored. The keys of all earlier rows are in them already. Page numbers may
    be any that the cache has, in any order; on a GPU nobody looks at them before the kernels do.
    Positions of any integer type become Python's, which do not overflow. Raises UsageError for
    others.
    """

    handle: RequestHandle
    row_start: int
    rows: int
    page_table: torch.Tensor

    def __post_init__(self) -> None:
        for name in ("row_start", "rows"):
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, index(value))
            except TypeError as error:
                raise UsageError(
                    f"{name}: expected a whole number, found {value!r}; pass absolute positions "
                    "of the prompt"
                ) from error

    @property
    def row_stop(self) -> int:
        """Position behind the last row."""
        return self.row_start + self.rows


def check_ranges(spec: CacheSpec, layout: MaskLayout, ranges: Sequence[RowRange]) -> None:
    """Raise UsageError or PlanError unless ranges can be attended with this cache and layout."""
    if not ranges:
        raise UsageError("expected at least one range of rows, found none; skip an empty step")
    for number, part in enumerate(ranges):
        _check_range(f"range {number}", spec, part)
        if part.handle.layout != layout:
            raise PlanError(
                f"range {number}: expected a handle of this rank's layer, found one whose masks "
                f"are laid out as {part.handle.layout}; make handles with the layer that serves"
            )
        if part.page_table.device != ranges[0].page_table.device:
            raise UsageError(
                f"range {number}: expected its page table on {ranges[0].page_table.device}, found "
                f"{part.page_table.device}; one step runs on one device"
            )


def _check_range(name: str, spec: CacheSpec, part: RowRange) -> None:
    if part.row_start < 0 or part.rows < 1:
        raise UsageError(
            f"{name}: expected at least one row from position 0 on, found {part.rows} from "
            f"{part.row_start}; pass absolute positions of the prompt"
        )
    table = part.page_table
    tensor = isinstance(table, torch.Tensor)
    if not tensor or table.ndim != 1 or table.dtype != torch.int32:
        found = f"{table.dtype} {list(table.shape)}" if tensor else type(table).__name__
        raise UsageError(
            f"{name}: expected a page table int32 [n], found {found}; pass this request's row of "
            "the block table"
        )
    if table.stride(0) != 1 and table.shape[0] > 1:
        raise UsageError(
            f"{name}: expected a page table with a stride of 1, found {table.stride(0)}; call "
            ".contiguous() on it"
        )
    needed = -(-part.row_stop // spec.page_size)
    if table.shape[0] < needed:
        raise UsageError(
            f"{name}: expected a page table of at least {needed} KV pages of {spec.page_size} for "
            f"rows up to {part.row_stop}, found {table.shape[0]}; allocate them before the step"
        )
