"""Several prompts of one call, each under its plan, as one set of tables: kernels run them at once.

Keys, rows, lists and bits of the prompts lie one behind the other, and every number in the tables
is shifted to where its prompt's begin. Of the bits nothing is decoded anew: offsets and counts of
the plans are joined on the device by a few operations, whatever the number of prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch

from sift_index.formats.errors import PlanError, UsageError
from sift_index.kernels.device_plan import DevicePlan, require_addressable, upload_tables
from sift_index.kernels.plan import MaskLayout
from sift_index.kernels.prompt_tables import Ints
from sift_index.kernels.row_tiles import Shift, in_launch_order
from sift_index.kernels.work import Work


@dataclass(frozen=True, eq=False)
class PromptPart:
    """Rows [row_start, row_start + rows) of one prompt, and where they are in a call's tensors.

    key_base: where the key of position 0 is in k and v. row_base: where the first row is in q.
    """

    plan: DevicePlan
    row_start: int
    rows: int
    key_base: int
    row_base: int

    @property
    def row_stop(self) -> int:
        """Position behind the last row, which is how many keys the prompt has."""
        return self.row_start + self.rows

    @property
    def decodes(self) -> bool:
        """Whether this is no more than one dense row, as when tokens are generated."""
        return self.rows <= 1 and self.row_start >= self.plan.length


@dataclass(frozen=True, eq=False)
class PlanBatch:
    """Prompts of one forward pass and the tables that all layers share; see `plan_batch`.

    rows, keys: how many of them q, and k and v, must have at least.
    """

    parts: tuple[PromptPart, ...]
    work: Work = field(repr=False)
    rows: int
    keys: int

    @property
    def layout(self) -> MaskLayout:
        """How bits map to score cells, the same for all plans."""
        return self.work.layout

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.work.bits.device


def plan_batch(
    plans: Sequence[DevicePlan],
    row_starts: Sequence[int],
    row_counts: Sequence[int],
    key_bases: Sequence[int] | None = None,
    row_bases: Sequence[int] | None = None,
) -> PlanBatch:
    """Return what `attend_batch` takes: rows [start, start + count) of each prompt, of 0 or more.

    Made once per forward pass: one upload, and nobody waits for the device. Levels of the plans may
    differ. key_bases, row_bases: where each prompt's key of position 0 and first row are; by
    default packed, one prompt behind the other. What lies between them is neither read, but for
    multiplying it by zero, nor written. Raises PlanError for plans of different layouts or devices
    and UsageError for numbers that do not fit together.
    """
    _check(plans, row_starts, row_counts, key_bases, row_bases)
    keys = [start + count for start, count in zip(row_starts, row_counts, strict=True)]
    key_bases = _packed(keys) if key_bases is None else key_bases
    row_bases = _packed(row_counts) if row_bases is None else row_bases
    places = zip(plans, row_starts, row_counts, key_bases, row_bases, strict=True)
    parts = tuple(PromptPart(*place) for place in places)
    require_addressable(sum(plan.bits.numel() for plan in plans))
    last_row = max(part.row_base + part.rows for part in parts)
    last_key = max(part.key_base + part.row_stop for part in parts)
    return PlanBatch(parts, _work(parts), last_row, last_key)


def _work(parts: Sequence[PromptPart]) -> Work:
    plans = [part.plan for part in parts]
    list_stops = [part.plan.list_stop(part.row_start, part.row_stop) for part in parts]
    pages = [plan.pages_before(stop) for plan, stop in zip(plans, list_stops, strict=True)]
    slots = [plan.counts.shape[-1] for plan in plans]
    # Between two prompts' offsets comes an empty page, so that one difference serves them all.
    page_bases = _packed([count + 1 for count in pages])
    shifts = _shifts(parts, slots)
    calls = [part.plan.call_rows(part.row_start, part.row_stop) for part in parts]
    lines, dense = in_launch_order(calls, shifts)
    page_start, page_length = _pages(parts, pages)
    first_page = np.repeat(page_bases, slots)
    tables = upload_tables((page_start, page_length, first_page, lines), plans[0].device)
    joined = [plan.offsets[..., : count + 1] for plan, count in zip(plans, pages, strict=True)]
    offsets = _joined_offsets(torch.cat(joined, -1))
    return Work(
        layout=plans[0].layout,
        page_start=tables[0],
        page_length=tables[1],
        offsets=offsets,
        counts=torch.cat([plan.counts for plan in plans], -1),
        starts=offsets.index_select(-1, tables[2]),
        row_tiles=tables[3],
        bits=torch.cat([plan.bits for plan in plans]),
        dense=dense,
        capacity=sum(list_stops),
        keys=sum(part.row_stop for part in parts),
    )


def _shifts(parts: Sequence[PromptPart], slots: Sequence[int]) -> list[Shift]:
    bits = _packed([part.plan.bits.numel() for part in parts])
    bases = zip(parts, _packed(slots), bits, strict=True)
    return [Shift(part.key_base, part.row_base, slot, bit) for part, slot, bit in bases]


def _pages(parts: Sequence[PromptPart], counts: Sequence[int]) -> tuple[Ints, Ints]:
    """Return int64 [P], start and length of all pages, an empty one between two prompts."""
    starts: list[Ints] = []
    lengths: list[Ints] = []
    for part, count in zip(parts, counts, strict=True):
        starts += [part.plan.pages.start[:count] + part.key_base, np.array([part.key_base])]
        lengths += [part.plan.pages.length[:count], np.array([0])]
    return np.concatenate(starts[:-1]), np.concatenate(lengths[:-1])


def _joined_offsets(offsets: torch.Tensor) -> torch.Tensor:
    """Return int32 [layers, mask_heads, P + 1], ascending, from offsets that begin anew at 0."""
    keys = offsets.diff(dim=-1).clamp_(min=0)
    joined = torch.zeros_like(offsets, memory_format=torch.contiguous_format)
    torch.cumsum(keys, -1, dtype=torch.int32, out=joined[..., 1:])
    return joined


def _packed(sizes: Sequence[int]) -> list[int]:
    """Return where each of some stretches begins when they lie one behind the other."""
    return list(accumulate(sizes, initial=0))[:-1]


def _check(
    plans: Sequence[DevicePlan],
    row_starts: Sequence[int],
    row_counts: Sequence[int],
    key_bases: Sequence[int] | None,
    row_bases: Sequence[int] | None,
) -> None:
    """Raise PlanError or UsageError as `plan_batch` says."""
    if not plans:
        raise UsageError("expected at least one plan, found none; pass one for each prompt")
    numbers = {"row_starts": row_starts, "row_counts": row_counts}
    numbers |= {
        "key_bases": key_bases or [0] * len(plans),
        "row_bases": row_bases or [0] * len(plans),
    }
    for name, found in numbers.items():
        if len(found) != len(plans) or min(found) < 0:
            raise UsageError(
                f"{name}: expected {len(plans)} numbers of 0 or more, one for each plan, found "
                f"{list(found)}"
            )
    for number, plan in enumerate(plans):
        for name in ("layout", "device"):
            expected, found_one = getattr(plans[0], name), getattr(plan, name)
            if found_one != expected:
                raise PlanError(
                    f"plan {number}: expected the {name} of plan 0, {expected}, found {found_one}; "
                    "batch plans of one index on one device"
                )
