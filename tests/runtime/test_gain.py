"""Why little is gained: one plain line, of the reason that is the largest."""

import re

import pytest

from sift_index.prompts import Segment
from sift_index.runtime.crossover import Crossover, CrossoverRow
from sift_index.runtime.explain import explain
from sift_index.runtime.gain import why_little
from sift_index.runtime.plan import PromptPlan
from tests.plans import compose, layout_of, masks_of, tiny, tokens

MODEL = tiny("llama")
LAYOUT = layout_of(MODEL)
TABLE = Crossover("Some GPU", "shape", (CrossoverRow(1024, 0.0), CrossoverRow(4096, 0.5)))


def plan_of(*lengths: int, kind: str = "off", missing: int = 0) -> PromptPlan:
    """A prompt of documents; those of up to 1,024 tokens are dense inside, as by default."""
    documents = [tokens(length, seed=n) for n, length in enumerate(lengths)]
    masks = [masks_of(ids, LAYOUT, kind, la_dense_tiles=8) for ids in documents]
    head, query = (Segment(tokens(n, seed=9), glue=True) for n in (11, 17))
    unknown = [tokens(missing, seed=77)] if missing else []
    return compose(MODEL, LAYOUT, [head, *documents, *unknown, query], masks)


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (plan_of(missing=300), "no document was found"),
        (plan_of(90, 90), "documents of up to 128 tokens, one tile, are dense inside"),
        (plan_of(300, 300, missing=900), r"8\d% belong to prefix, question and text not found"),
        (plan_of(300), "1 of 1 are so short that they are dense inside"),
        (plan_of(*[300] * 6, kind="on"), "most of their bits on"),
    ],
)
def test_the_reason_that_keeps_a_prompt_dense(plan, reason) -> None:
    (line,) = why_little(plan)
    assert f"{plan.density.total.share:.0%} of the scores are computed" in line
    assert re.search(reason, line)


def test_where_much_is_left_out_nothing_is_said() -> None:
    assert why_little(plan_of(*[300] * 6)) == why_little(plan_of(2000)) == []


def test_a_prompt_too_short_to_pay_on_a_measured_device() -> None:
    short, long = plan_of(*[300] * 6), plan_of(*[1500] * 3)
    line = "a prompt of 1,828 tokens is shorter than those for which sparse pays on Some GPU, about"
    assert why_little(short, [TABLE]) == [f"{line} 4,096 tokens"]
    assert why_little(long, [TABLE]) == []
    never = Crossover("Other GPU", "shape", (CrossoverRow(1024, 0.0),))
    assert why_little(short, [never]) == []


def test_explain_passes_it_on() -> None:
    plan = plan_of(*[300] * 6)
    assert explain(plan).notes == ()
    (other,) = explain(plan, None, [TABLE]).notes
    dense, own = explain(plan, TABLE).notes
    assert dense.startswith("runs dense: below crossover") and own == other
    assert explain(plan, TABLE, [TABLE]).notes == (dense, own)
