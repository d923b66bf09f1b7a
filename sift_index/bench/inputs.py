"""Random queries, keys and values, laid out as a model's projections leave them."""

from dataclasses import dataclass, field

import torch

from sift_index.bench.cases import Case, CaseOptions
from sift_index.kernels.api import DevicePlan


@dataclass(frozen=True, eq=False)
class Inputs:
    """bfloat16 q [tokens, heads, D], k and v [tokens, kv_heads, D]; tokens are outermost."""

    q: torch.Tensor = field(repr=False)
    k: torch.Tensor = field(repr=False)
    v: torch.Tensor = field(repr=False)

    def by_head(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return views [heads, tokens, D]; nothing is copied."""
        return self.q.transpose(0, 1), self.k.transpose(0, 1), self.v.transpose(0, 1)


@dataclass(frozen=True, eq=False)
class Problem:
    """One case with its data and its decoded plan."""

    case: Case
    inputs: Inputs
    plan: DevicePlan = field(repr=False)


def random_inputs(case: Case, options: CaseOptions, device: torch.device) -> Inputs:
    """Return the data of all cases of one number of tokens and head_dim."""
    generator = torch.Generator(device).manual_seed(options.seed)

    def normal(heads: int) -> torch.Tensor:
        shape = (case.tokens, heads, case.head_dim)
        return torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)

    return Inputs(normal(options.heads), normal(options.kv_heads), normal(options.kv_heads))
