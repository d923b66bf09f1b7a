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
    parts = layer_densities(plan)
    return sum(parts[1:], start=parts[0])


def layer_densities(plan: SparsePlan) -> list[Density]:
    """Return the density of each layer, all heads."""
    counter = _Counter(plan)
    return [counter.layer(layer) for layer in range(plan.layout.layers)]


class _Counter:
    """Counts one layer at a time: CA from the key list's counts, LA from tiles, glue as dense."""

    def __init__(self, plan: SparsePlan) -> None:
        self._plan = plan
        self._heads = plan.layout.heads
        glue = glue_keys(plan, torch.device("cpu"))
        # Glue keys in front of each position; rows of glue see every key up to their own.
        self._glue_before = torch.nn.functional.pad(glue.cumsum(0), (1, 0))
        self._glue_cells = int((torch.nonzero(glue)[:, 0] + 1).sum()) * self._heads

    def layer(self, layer: int) -> Density:
        """Count the cells of one layer."""
        plan = self._plan
        la, ca = Cells(0, 0), Cells(0, 0)
        visited = self._glue_cells
        counts = ca_list(plan, layer)
        first, rest = counts.count_first.sum(0).tolist(), counts.count.sum(0).tolist()
        for index, span in enumerate(plan.spans):
            own = _own_cells(plan, span, layer)
            cross = self._cross_cells(index, first[index], rest[index])
            la = la + own
            ca = ca + cross if index else ca
            visited += own.visited + cross.visited
            visited += span.tokens * int(self._glue_before[span.start]) * self._heads
        causal = plan.length * (plan.length + 1) // 2 * self._heads
        return Density(Cells(visited, causal), la, ca)

    def _cross_cells(self, index: int, keys_first: int, keys: int) -> Cells:
        """Earlier-span cells of one span's rows: CA pages, plus the window of its first tile.

        `keys_first` and `keys` are the CA list's counts for the span, summed over heads.
        """
        plan, before = self._plan, self._glue_before
        span = plan.spans[index]
        first = min(TILE, span.tokens)
        w = plan.window_start(index)
        window = (span.start - w) - int(before[span.start] - before[w])
        visited = first * (keys_first + window * self._heads) + (span.tokens - first) * keys
        earlier = span.start - int(before[span.start])
        return Cells(visited, span.tokens * earlier * self._heads)


def _own_cells(plan: SparsePlan, span: SpanMask, layer: int) -> Cells:
    whole = span.tokens * (span.tokens + 1) // 2 * plan.layout.heads
    if span.la is None:
        return Cells(whole, whole)
    tiles = la_tiles(span, layer, plan.layout, plan.level).cpu()
    rows = torch.full((span.tiles,), TILE)
    rows[-1] = span.tokens - TILE * (span.tiles - 1)
    cells = rows[:, None] * rows[None, :]
    cells.diagonal().copy_(rows * (rows + 1) // 2)
    return Cells(int((tiles * cells).sum()), whole)
