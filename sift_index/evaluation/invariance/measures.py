"""The numbers of both claims: of a layer, of a prompt, and of all prompts with intervals.

Every number is a share. Until the end it is kept as two sums, part and whole, for every head:
`counts`, float64 [2, heads] in a layer and [layers, 2, heads] in a prompt. Where there is nothing
to count (a head without one high cell) the share is NaN and left out of means.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Generic, TypeVar

import torch

from sift_index.evaluation.invariance.sums import Limits
from sift_index.evaluation.metrics import Interval, bootstrap

Value = TypeVar("Value")
Other = TypeVar("Other")
NOTHING = Interval(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class LocalRecall(Generic[Value]):
    """Claim 1: tiles that are high in the document alone against those high in the prompt.

    Over tiles left of the diagonal. `tile_recall`, `precision`, `jaccard`: of the two tile sets;
    `cell_recall`, `mass`: share of the in-prompt high cells, and of the document's own in-prompt
    attention, in tiles that were high alone; `density_*`: share of tiles that are high.
    """

    tile_recall: Value
    cell_recall: Value
    precision: Value
    jaccard: Value
    mass: Value
    density_alone: Value
    density_prompt: Value


@dataclass(frozen=True)
class CrossRecall(Generic[Value]):
    """Claim 2 for one policy, over rows of later documents and keys of earlier ones.

    `cells`, `mass`: share of the high cells, and of the attention, in pages that are on;
    `density`: share of all such cells in these pages. The boundary window is not counted.
    """

    cells: Value
    mass: Value
    density: Value


@dataclass(frozen=True)
class Invariance(Generic[Value]):
    """Both claims; `ca` by policy, `ca_high` the share of cross cells that are high."""

    la: LocalRecall[Value]
    ca_high: Value
    ca: Mapping[str, CrossRecall[Value]]


@dataclass(frozen=True)
class InvarianceReport:
    """Means over prompts, with intervals where they are over all layers.

    `layers` and `overall` are means over heads (and layers): each counts the same. `pooled` takes
    all heads and layers of a prompt together, so one with many high cells counts for more.
    `documents` stand in the prompts behind a prefix; `la_documents` of them stand behind another
    one and have at least 2 tiles: claim 1 is about these.
    """

    layers: tuple[Invariance[float], ...]
    overall: Invariance[Interval]
    pooled: Invariance[Interval]
    prompts: int
    documents: int
    la_documents: int
    limits: Limits


def local_recall(
    alone: torch.Tensor, high: torch.Tensor, mass: torch.Tensor
) -> LocalRecall[torch.Tensor]:
    """Count tiles, all [heads, tiles]: high alone (bool), high cells and mass in the prompt."""
    prompt = high > 0
    both = alone & prompt
    every = torch.ones_like(alone)
    return LocalRecall(
        tile_recall=_counts(both, prompt),
        cell_recall=_counts(high * alone, high),
        precision=_counts(both, alone),
        jaccard=_counts(both, alone | prompt),
        mass=_counts(mass * alone, mass),
        density_alone=_counts(alone, every),
        density_prompt=_counts(prompt, every),
    )


def cross_recall(
    kept: torch.Tensor, high: torch.Tensor, mass: torch.Tensor, rows: torch.Tensor
) -> CrossRecall[torch.Tensor]:
    """Count in keys that are kept (bool), [heads, keys]; rows [keys] that could see each."""
    return CrossRecall(
        cells=_counts(high * kept, high),
        mass=_counts(mass * kept, mass),
        density=_counts(rows * kept, rows.expand(kept.shape)),
    )


def high_cells(high: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Count cells that are high: high [heads, keys] of rows [keys] each."""
    return _counts(high, rows.expand(high.shape))


def combine(
    parts: Sequence[Invariance[Value]], how: Callable[[list[Value]], Other]
) -> Invariance[Other]:
    """Combine the same number of several places, one number after the other."""
    return Invariance(
        la=_local([part.la for part in parts], how),
        ca_high=how([part.ca_high for part in parts]),
        ca={name: _cross([part.ca[name] for part in parts], how) for name in parts[0].ca},
    )


def layer_means(prompts: Sequence[Invariance[torch.Tensor]]) -> tuple[Invariance[float], ...]:
    """Return each layer's means over prompts, from their counts."""
    means = combine(prompts, _means_by_layer)
    return tuple(combine([means], _pick(at)) for at in range(len(means.ca_high)))


def overall_means(prompts: Sequence[Invariance[torch.Tensor]]) -> Invariance[Interval]:
    """Return means over heads, layers and prompts, from the prompts' counts."""
    return combine(prompts, lambda counts: _interval([_heads(c).nanmean() for c in counts]))


def pooled_means(prompts: Sequence[Invariance[torch.Tensor]]) -> Invariance[Interval]:
    """Return means over prompts, each with its heads and layers counted together."""
    return combine(prompts, lambda counts: _interval([_pooled(c) for c in counts]))


def _means_by_layer(counts: list[torch.Tensor]) -> list[float]:
    means: list[float] = torch.stack([_heads(count) for count in counts]).nanmean(0).tolist()
    return means


def _pick(at: int) -> Callable[[list[list[float]]], float]:
    return lambda values: values[0][at]


def _heads(counts: torch.Tensor) -> torch.Tensor:
    """Return [layers]: the mean over heads of a prompt's shares."""
    means: torch.Tensor = (counts[:, 0] / counts[:, 1]).nanmean(-1)
    return means


def _pooled(counts: torch.Tensor) -> torch.Tensor:
    part, whole = counts.sum((0, 2))
    return torch.div(part, whole)


def _interval(shares: list[torch.Tensor]) -> Interval:
    known = [share.item() for share in shares if not share.isnan()]
    return bootstrap(known) if known else NOTHING


def _counts(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Return float64 [2, heads]: sums of part and whole, [heads, n] each."""
    return torch.stack([values.sum(-1, dtype=torch.float64) for values in (part, whole)])


def _local(
    parts: Sequence[LocalRecall[Value]], how: Callable[[list[Value]], Other]
) -> LocalRecall[Other]:
    names = (field.name for field in fields(LocalRecall))
    return LocalRecall(**{name: how([getattr(part, name) for part in parts]) for name in names})


def _cross(
    parts: Sequence[CrossRecall[Value]], how: Callable[[list[Value]], Other]
) -> CrossRecall[Other]:
    names = (field.name for field in fields(CrossRecall))
    return CrossRecall(**{name: how([getattr(part, name) for part in parts]) for name in names})
