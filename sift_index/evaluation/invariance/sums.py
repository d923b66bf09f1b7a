"""What rows attend to, summed over rows as the model runs: no L x L matrix ever exists.

Both claims are about sets of keys or tiles, so the counts and masses of key columns are enough.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from sift_index.adapters.hf_attention import run_under
from sift_index.kernels.api import TILE, causal_attention
from sift_index.kernels.dense import grouped_scores
from sift_index.kernels.statistics import block_scores
from sift_index.models.loading import LoadedModel

Kept = TypeVar("Kept")


@dataclass(frozen=True)
class LayerView:
    """One layer: q [heads, L, D] and k [kv_heads, L, D], rotated; lse float32 [heads, L]."""

    q: torch.Tensor
    k: torch.Tensor
    lse: torch.Tensor
    scale: float


@dataclass(frozen=True)
class Limits:
    """What is a high score: alpha within a document, beta between documents (PAPER 1.1)."""

    alpha: float
    beta: float


@dataclass(frozen=True)
class SpanSums:
    """What the rows of one span attend to: high cells [0] and mass [1], float32.

    cross [2, heads, keys]: keys in front of the span. tiles [2, heads, T (T - 1) / 2]: its own
    tiles left of the diagonal, row-major.
    """

    cross: torch.Tensor
    tiles: torch.Tensor


def observe(
    loaded: LoadedModel, ids: Sequence[int], reduce: Callable[[int, LayerView], Kept]
) -> list[Kept]:
    """Run token ids densely and return what `reduce` makes of each layer."""
    observer = _Observer(reduce)
    run_under(loaded.model, ids, observer)
    return [observer.kept[layer] for layer in range(loaded.geometry.layers)]


def span_sums(view: LayerView, first: int, start: int, stop: int, limits: Limits) -> SpanSums:
    """Sum what rows [start, stop) attend to among keys from `first` on, diagonal tiles left out."""
    least = torch.full((stop,), limits.alpha, device=view.q.device)
    least[:start] = limits.beta
    cross = torch.zeros(2, view.q.shape[0], start - first, device=view.q.device)
    tiles = []
    for row in range(start, stop, TILE):
        sums = _column_sums(view, row, min(row + TILE, stop), first, least)
        cross += sums[..., : start - first]
        tiles.append(sums[..., start - first :].unflatten(-1, (-1, TILE)).sum(-1))
    return SpanSums(cross, torch.cat(tiles, -1))


def _column_sums(
    view: LayerView, row: int, stop: int, first: int, least: torch.Tensor
) -> torch.Tensor:
    """Return [2, heads, row - first]: per key, cells of rows [row, stop) >= `least`, and mass."""
    heads = view.q.shape[0]
    sums = torch.zeros(2, heads, row - first, device=view.q.device)
    run = TILE * max(1, block_scores(view.q.device) // (heads * TILE * TILE))
    for key in range(first, row, run):
        end = min(key + run, row)
        p = grouped_scores(view.q[:, row:stop], view.k[:, key:end], view.scale)
        p.sub_(view.lse[:, row:stop, None]).exp_()
        torch.sum(p, 1, out=sums[1, :, key - first : end - first])
        # In place: a bool matrix would be summed as int64, several times slower on a CPU.
        torch.sum(p.ge_(least[key:end]), 1, out=sums[0, :, key - first : end - first])
    return sums


class _Observer(Generic[Kept]):
    """Dense attention that keeps something of every layer."""

    def __init__(self, reduce: Callable[[int, LayerView], Kept]) -> None:
        self.kept: dict[int, Kept] = {}
        self._reduce = reduce

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        out, lse = causal_attention(q, k, v, scale)
        self.kept[layer] = self._reduce(layer, LayerView(q, k, lse, scale))
        return out
