"""How many units a version bears: each is a pack, a receipt and 272 bytes of the manifest.

A manifest of more than 256 MiB is opened by no reader, so a plan that would end there is refused
before it is computed. Well below, opening and publishing get slow; see SPEC.md, Sizes.
"""

from sift_index.errors import BuildError
from sift_index.pipelines.planner import UnitPlan
from sift_index.pipelines.resume import Held

MANY_UNITS = 100_000
MOST_UNITS = 900_000


def total_units(plan: UnitPlan, held: Held) -> int:
    """Return how many packs the next version would have."""
    packs = len(held.manifest.packs) if held.manifest is not None else 0
    return len(plan) + len(held.receipts) + packs


def enough_tokens(plan: UnitPlan, units: int) -> int:
    """Return a budget of a unit, a power of two, that makes at most so many units of a plan.

    Two units that follow each other hold more than one budget, so half of them fill it.
    """
    return 1 << (2 * plan.tokens // units).bit_length()


def require_bearable(plan: UnitPlan, held: Held) -> None:
    """Raise BuildError when the next version would have more packs than readers open."""
    found = total_units(plan, held)
    if not len(plan) or found <= MOST_UNITS:
        return
    advice = f"--unit-tokens {enough_tokens(plan, MANY_UNITS)}"
    if found - len(plan) > MANY_UNITS:
        advice += ", after `sift-index compact`, for that many packs are there already"
    raise BuildError(
        f"expected at most {MOST_UNITS:,} packs in a version, found a plan that makes {found:,}: "
        f"the manifest would be larger than readers accept; use {advice}. Nothing was computed"
    )
