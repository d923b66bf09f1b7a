"""Attention-mass recall: how much of the dense model's attention falls into visited places.

All rows of a block may see the same keys, so a block's attention is summed over its rows once and
any number of plans are measured on the sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sift_index.kernels.api import SparsePlan, causal_attention, dense_attention
from sift_index.kernels.ca_list import glue_keys
from sift_index.kernels.dense import grouped_scores, later_keys
from sift_index.kernels.plan import RowBlock, row_blocks
from sift_index.kernels.reference import MarkedKeys


@dataclass(frozen=True)
class Recall:
    """Shares of the attention mass of document rows: on their own document, and on earlier ones."""

    la: float
    ca: float


@dataclass(frozen=True)
class _Layer:
    """One layer of the prompt: q [heads, L, D], k [kv_heads, L, D], lse [heads, L]."""

    number: int
    q: torch.Tensor
    k: torch.Tensor
    lse: torch.Tensor
    scale: float

    def mass(self, block: RowBlock) -> torch.Tensor:
        """Return [heads, block.end]: probability per key, summed over the block's rows."""
        rows = slice(block.begin, block.end)
        p = grouped_scores(self.q[:, rows], self.k[:, : block.end], self.scale)
        p.sub_(self.lse[:, rows, None]).exp_()
        p[..., block.begin :].masked_fill_(later_keys(block.end - block.begin, p.device), 0.0)
        return p.sum(1)


class MassObserver:
    """Dense attention over one prompt that measures, layer by layer, what each plan would see."""

    def __init__(self, plans: Sequence[SparsePlan]) -> None:
        self._plans = tuple(plans)
        # Per plan: visited and whole mass, each on own and on earlier documents.
        self._mass = torch.zeros(len(plans), 2, 2, dtype=torch.float64)

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attend densely and add up the prompt's masses; decoded rows are not counted."""
        if q.shape[1] < k.shape[1]:
            return dense_attention(q, k, v, scale)
        out, lse = causal_attention(q, k, v, scale)
        self._mass = self._mass.to(q.device)
        self._plans = tuple(plan.to(q.device) for plan in self._plans)
        for members in _same_spans(self._plans):
            self._observe(_Layer(layer, q, k, lse, scale), members)
        return out

    def recalls(self) -> list[Recall]:
        """Return one recall per plan; 1.0 where there was nothing to attend to."""
        visited, whole = self._mass.cpu().unbind(1)
        shares = torch.where(whole > 0, visited / whole, 1.0)
        return [Recall(la, ca) for la, ca in shares.tolist()]

    def _observe(self, layer: _Layer, members: Sequence[int]) -> None:
        """Add one layer's masses to plans that place the same spans."""
        first = self._plans[members[0]]
        device = layer.q.device
        marked = {plan: MarkedKeys(self._plans[plan], layer.number, device) for plan in members}
        glue = glue_keys(first, device)
        for block in row_blocks(first, 0, first.length):
            if block.span is None:
                continue
            start = first.spans[block.span].start
            mass = layer.mass(block)
            mass[:, :start].masked_fill_(glue[:start], 0.0)
            for plan in members:
                visited = mass * marked[plan].of(block)
                self._mass[plan] += torch.stack((_split(visited, start), _split(mass, start)))


def _split(mass: torch.Tensor, start: int) -> torch.Tensor:
    """Return float64 [2]: mass [heads, keys] on the own document (from `start`) and before it."""
    return torch.stack((mass[:, start:].sum(), mass[:, :start].sum())).double()


def _same_spans(plans: Sequence[SparsePlan]) -> list[list[int]]:
    """Group the numbers of plans whose spans stand at the same places; plans without any go."""
    groups: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for number, plan in enumerate(plans):
        places = tuple((span.start, span.stop) for span in plan.spans)
        groups.setdefault(places, []).append(number)
    return [numbers for places, numbers in groups.items() if places]
