"""How much of a prompt's causal attention a plan visits, counted in score cells."""

from dataclasses import dataclass

import torch

from sift_index.kernels.bits import la_tiles
from sift_index.kernels.ca_list import ca_list, glue_keys
from sift_index.kernels.plan import TILE, SpanMask, SparsePlan


@dataclass(frozen=True)
class Cells:
    """Visited and causal cells, summed over heads (and over layers once added up)."""

    visited: int
    causal: int

    def __add__(self, other: "Cells") -> "Cells":
        return Cells(self.visited + other.visited, self.causal + other.causal)

    @property
    def share(self) -> float:
        """Visited share; 0.0 where there is nothing to visit."""
        return self.visited / self.causal if self.causal else 0.0


@dataclass(frozen=True)
class Density:
    """Visited shares of a prompt. `ca` is over the rows of all spans but the first (rules 3, 4)."""

    total: Cells
    la: Cells
    ca: Cells

    def __add__(self, other: "Density") -> "Density":
        return Density(self.total + other.total, self.la + other.la, self.ca + other.ca)


def plan_density(plan: SparsePlan) -> Density:
    """Return the density of a whole plan, all layers and heads."""
    parts = [layer_density(plan, layer) for layer in range(plan.layout.layers)]
    return sum(parts[1:], start=parts[0])


def layer_density(plan: SparsePlan, layer: int) -> Density:
    """Count one layer: CA from the key list's counts, LA from tiles, glue rows as dense."""
    la, ca = Cells(0, 0), Cells(0, 0)
    glue = glue_keys(plan, torch.device("cpu"))
    glue_before = torch.nn.functional.pad(glue.cumsum(0), (1, 0))
    heads = plan.layout.heads
    rows_dense = (torch.nonzero(glue)[:, 0] + 1).sum().item() * heads
    visited = int(rows_dense)
    counts = ca_list(plan, layer)
    for index, span in enumerate(plan.spans):
        own = _own_cells(plan, span, layer)
        cross = _cross_cells(plan, index, counts.count_first, counts.count, glue_before)
        la = la + own
        ca = ca + cross if index else ca
        visited += own.visited + cross.visited
        visited += span.tokens * int(glue_before[span.start]) * heads
    causal = plan.length * (plan.length + 1) // 2 * heads
    return Density(Cells(visited, causal), la, ca)


def _own_cells(plan: SparsePlan, span: SpanMask, layer: int) -> Cells:
    tiles = la_tiles(span, layer, plan.layout, plan.level).cpu()
    rows = torch.full((span.tiles,), TILE)
    rows[-1] = span.tokens - TILE * (span.tiles - 1)
    cells = rows[:, None] * rows[None, :]
    cells.diagonal().copy_(rows * (rows + 1) // 2)
    visited = int((tiles * cells).sum())
    return Cells(visited, span.tokens * (span.tokens + 1) // 2 * plan.layout.heads)


def _cross_cells(
    plan: SparsePlan,
    index: int,
    count_first: torch.Tensor,
    count: torch.Tensor,
    glue_before: torch.Tensor,
) -> Cells:
    """Earlier-span cells of one span's rows: CA pages, plus the window of its first tile."""
    span = plan.spans[index]
    first = min(TILE, span.tokens)
    w = plan.window_start(index)
    window = (span.start - w) - int(glue_before[span.start] - glue_before[w])
    visited = first * (int(count_first[:, index].sum()) + window * plan.layout.heads)
    visited += (span.tokens - first) * int(count[:, index].sum())
    earlier = span.start - int(glue_before[span.start])
    return Cells(visited, span.tokens * earlier * plan.layout.heads)
