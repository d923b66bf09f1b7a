"""Why a prompt gains little from masks, in one line: mostly, it or its documents are short.

Scores can be left out between documents, and inside those that store local masks. Everything else
is dense by the rules of the plan, however sparse the masks are.
"""

from collections.abc import Iterable

from sift_index.kernels.api import TILE
from sift_index.runtime.crossover import Crossover
from sift_index.runtime.plan import PromptPlan

# Above this share of scores the best speed-up there can be is 1.25.
LITTLE = 0.8


def why_little(plan: PromptPlan, measured: Iterable[Crossover] = ()) -> list[str]:
    """Return what keeps a plan from leaving out more, or from being faster for what it leaves out.

    measured: tables of devices, which say from which length on sparse can pay there at all.
    """
    share, notes = plan.density.total.share, list[str]()
    if plan.length and share > LITTLE:
        notes.append(f"{share:.0%} of the scores are computed: {_reason(plan)}")
    for table in measured:
        start = _pays_from(table)
        if start is not None and plan.length < start:
            notes.append(
                f"a prompt of {plan.length:,} tokens is shorter than those for which sparse pays "
                f"on {table.device}, about {start:,} tokens"
            )
    return notes


def _pays_from(table: Crossover) -> int | None:
    """Return the shortest measured length at which some density runs faster sparse."""
    return next((row.tokens for row in table.rows if row.max_density > 0), None)


def _reason(plan: PromptPlan) -> str:
    spans, density = plan.sparse.spans, plan.density
    total, inside, between = density.total.causal, density.la.causal, density.ca.causal
    glue = 1 - (inside + between) / max(1, total)
    if not spans:
        return "no document was found in the index, and other text is dense"
    if max(span.tokens for span in spans) <= TILE:
        return (
            f"documents of up to {TILE} tokens, one tile, are dense inside and read the {TILE} "
            "tokens before them densely"
        )
    if glue > 1 / 3:
        return f"{glue:.0%} belong to prefix, question and text not found, which are always dense"
    dense = sum(span.la is None for span in spans)
    if inside > between:
        return (
            f"most lie inside documents, of which {dense} of {len(spans)} are so short that they "
            "are dense inside; more documents, or longer ones, leave out more"
        )
    return "the masks of these documents have most of their bits on at this level"
