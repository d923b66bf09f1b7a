"""How far two ways to score the same documents agree: entries that differ, and which are ties.

Two devices add in another order, so that a score next to a threshold may fall on either side. Such
a tie is no error; any other difference is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from sift_index.kernels.api import nested_levels
from sift_index.selection.extractor import DocumentScores
from sift_index.selection.policy import ProbePolicy


@dataclass(frozen=True)
class Agreement:
    """Counts of mask entries. ties: those that differ and lie within a tolerance of a threshold."""

    entries: int = 0
    differing: int = 0
    ties: int = 0

    @property
    def errors(self) -> int:
        """Entries that differ and are no ties."""
        return self.differing - self.ties

    @property
    def share(self) -> float:
        """Share of entries that differ."""
        return self.differing / max(1, self.entries)

    def __add__(self, other: "Agreement") -> "Agreement":
        return Agreement(
            self.entries + other.entries,
            self.differing + other.differing,
            self.ties + other.ties,
        )


def level_agreement(
    truth: torch.Tensor, found: torch.Tensor, thresholds: Sequence[float], tolerance: float
) -> Agreement:
    """Compare scores of one shape by the levels that ascending thresholds give them.

    tolerance: relative distance from a threshold within which a true score is a tie.
    """
    truth, found = truth.float().cpu(), found.float().cpu()
    differing = nested_levels(truth, tuple(thresholds)) != nested_levels(found, tuple(thresholds))
    limits = torch.tensor(list(thresholds))
    near = ((truth[..., None] - limits).abs() <= tolerance * limits).any(-1)
    return Agreement(truth.numel(), int(differing.sum()), int((differing & near).sum()))


def mask_agreement(
    truth: Iterable[DocumentScores],
    found: Iterable[DocumentScores],
    policy: ProbePolicy,
    tolerance: float,
) -> Agreement:
    """Compare the masks that a policy makes of two scorings of the same documents in order."""
    total = Agreement()
    for true, other in zip(truth, found, strict=True):
        for a, b in zip(true.layers, other.layers, strict=True):
            total += level_agreement(a.ca, b.ca, policy.ca_levels, tolerance)
            if a.la is not None and b.la is not None:
                total += level_agreement(a.la, b.la, policy.la_levels, tolerance)
    return total
