"""What can be timed on a problem: one of our paths, or a peer."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sift_index.bench.cases import Case
from sift_index.bench.inputs import Problem

Attention = Callable[[], torch.Tensor]  # returns [heads, tokens, D]
# Dense FlashAttention-3, which all rates and times are compared with.
BASELINE = "fa3"
# Copying the listed keys, the first part of sparse attention, timed alone.
COMPACTION = "compaction"


@dataclass(frozen=True)
class Contender:
    """Something that attends; `build` and the first call raise where it cannot run.

    dense: to every key, else to the plan's tiles; ours: a path.
    aligned: takes aligned cases alone. once: timed in one case of each tokens and head_dim.
    """

    name: str
    build: Callable[[Problem], Attention]
    dense: bool = False
    ours: bool = False
    aligned: bool = False
    once: bool = False

    def row_case(self, case: Case) -> str:
        """Return the name its numbers of a case are kept under."""
        return f"{self.name}/{case.shape if self.once else case.label}"
