"""How far outputs are from float32 attention under the same mask, ours and FlashAttention-3's."""

from dataclasses import dataclass, field, replace

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from sift_index.bench.inputs import Problem
from sift_index.kernels import reference
from sift_index.kernels.api import SparsePlan

# Rounding to bfloat16 costs 0.002 to 0.004; more is a key too many or too few.
MAX_ERROR = 0.02
# The reference writes its masks out: longer prompts take it too much memory.
MOST_CHECKED_TOKENS = 16384


@dataclass(frozen=True, eq=False)
class Truth:
    """float32 [heads, tokens, D] under the plan's mask, and under the causal mask alone."""

    sparse: torch.Tensor = field(repr=False)
    dense: torch.Tensor = field(repr=False)


def truth_of(problem: Problem) -> Truth:
    """Return the reference's outputs in float32."""
    plan = problem.plan.source
    return Truth(_reference(problem, plan), _reference(problem, replace(plan, spans=())))


def relative_error(out: torch.Tensor, truth: torch.Tensor) -> float:
    """Return |out - truth| / |truth|, both [heads, tokens, D]."""
    return float((out.float() - truth).norm() / truth.norm())


def _reference(problem: Problem, plan: SparsePlan) -> torch.Tensor:
    q, k, v = (x.float() for x in problem.inputs.by_head())
    # Other backends may take float32 products through TF32, an error as large as those measured.
    with sdpa_kernel(SDPBackend.MATH):
        return reference.sparse_attention(q, k, v, plan.to(q.device), layer=0)
