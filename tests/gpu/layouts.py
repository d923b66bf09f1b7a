"""Random prompts for kernels: any mix of spans, glue, bits, heads and chunk borders."""

from dataclasses import dataclass

import numpy as np

from sift_index.kernels.api import MaskLayout, SparsePlan
from tests.kernels.naive import random_plan

LONGEST_PROMPT = 16384
LONGEST_SPAN = 9000
GROUPS = (1, 3, 4, 7, 8, 12, 16)


@dataclass(frozen=True)
class Case:
    """A plan, and how it is run: `stop` rows at most, cut into chunks at `cuts`."""

    plan: SparsePlan
    kv_heads: int
    dim: int
    cuts: tuple[int, ...]


def random_case(seed: int) -> Case:
    """Return a case of 1 to 200 spans of 1 to 9,000 tokens, up to 16K tokens in all."""
    draw = np.random.default_rng(seed)
    group = int(draw.choice(GROUPS))
    kv_heads = int(draw.integers(1, 3))
    heads = group * kv_heads
    levels = int(draw.integers(1, 3))
    layout = MaskLayout(
        layers=1,
        heads=heads,
        mask_heads=int(draw.choice([heads, kv_heads])),
        page_size=int(draw.choice([8, 16, 32, 64, 128])),
        levels=levels,
        boundary=int(draw.choice([0, 64, 128, 128, 256])),
        neighbour=bool(draw.integers(0, 2)),
    )
    density = float(draw.choice([0.0, 0.05, 0.3, 0.7, 1.0]))
    plan = random_plan(layout, _segments(draw), seed, density, int(draw.choice([0, 2, 8])))
    cuts = sorted({0, plan.length, *draw.integers(0, plan.length + 1, int(draw.integers(0, 4)))})
    return Case(plan, kv_heads, int(draw.choice([64, 128])), tuple(map(int, cuts)))


def _segments(draw: np.random.Generator) -> list[tuple[str, int]]:
    limit = int(np.exp(draw.uniform(np.log(200), np.log(LONGEST_PROMPT))))
    spans = int(np.exp(draw.uniform(0, np.log(201))))
    with_glue = draw.random()
    found: list[tuple[str, int]] = []
    for _ in range(spans):
        if draw.random() < with_glue:
            found.append(("glue", int(draw.integers(1, 300))))
        found.append(("span", int(np.exp(draw.uniform(0, np.log(LONGEST_SPAN + 1))))))
    found.append(("glue", int(draw.integers(1, 200))))
    kept, total = [], 0
    for kind, tokens in found:
        tokens = min(tokens, limit - total)
        if tokens > 0:
            kept.append((kind, tokens))
            total += tokens
    return kept
