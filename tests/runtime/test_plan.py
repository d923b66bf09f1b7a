"""What a composed prompt says about itself: hits, misses, density and notes."""

import pytest

from sift_index.prompts import Segment
from tests.kernels.naive import naive_mask
from tests.plans import compose, layout_of, masks_of, tiny, tokens

MODEL = tiny("llama")
LAYOUT = layout_of(MODEL)
DOCUMENTS = [tokens(200, seed=s) for s in range(4)]
HEAD, QUERY = (Segment(tokens(n, seed=9), glue=True) for n in (11, 17))


def plan_of(*segments, kind: str = "random"):
    return compose(MODEL, LAYOUT, segments, [masks_of(d, LAYOUT, kind) for d in DOCUMENTS])


def test_ids_length_hits_and_misses():
    plan = plan_of(HEAD, DOCUMENTS[0], tokens(50), DOCUMENTS[1], QUERY)
    assert plan.length == 11 + 200 + 50 + 200 + 17
    assert plan.input_ids.tolist() == [list(plan.ids)]
    assert (plan.hits, plan.misses) == (2, 1)


def test_density_is_the_share_of_cells():
    plan = plan_of(HEAD, *DOCUMENTS[:2], QUERY)
    visited = sum(int(naive_mask(plan.sparse, layer).sum()) for layer in range(2))
    cells = plan.length * (plan.length + 1) // 2 * 4 * 2
    assert plan.density.total.share == pytest.approx(visited / cells)
    assert plan_of(HEAD, *DOCUMENTS, QUERY, kind="on").density.total.share == 1.0


def test_short_glue_between_spans_is_noted_by_its_share():
    separator = Segment([7, 7], glue=True)
    plan = plan_of(HEAD, DOCUMENTS[0], separator, DOCUMENTS[1], separator, DOCUMENTS[2], QUERY)
    visited = plan.density.total.visited
    cells = 128 * (11 + 200 + 2) + 128 * (11 + 200 + 2 + 200 + 2)  # a whole tile of rows each
    assert plan.short_glue_share == pytest.approx(cells * 2 * 4 / visited)
    assert plan.short_glue_share > 0.02
    (note,) = plan.notes()
    assert f"{plan.short_glue_share:.1%}" in note
    assert "span_prefix or span_suffix" in note


@pytest.mark.parametrize(
    "segments",
    [
        [HEAD, *DOCUMENTS, QUERY],
        [HEAD, Segment([3], glue=True), *DOCUMENTS, Segment([4], glue=True), QUERY],
        [HEAD, DOCUMENTS[0], tokens(150), DOCUMENTS[1], QUERY],  # unindexed text, not a separator
        [HEAD, DOCUMENTS[0], [], DOCUMENTS[1], QUERY],
        [HEAD, QUERY],
        [],
    ],
    ids=["none", "outside the spans", "long", "empty", "no spans", "nothing"],
)
def test_nothing_is_noted_without_short_glue_between_spans(segments):
    plan = plan_of(*segments)
    assert plan.short_glue_share == 0.0
    assert plan.notes() == []


def test_short_glue_of_a_small_share_is_not_noted():
    long = [tokens(4000, seed=s) for s in range(2)]
    rows = [masks_of(d, LAYOUT, "on") for d in long]
    plan = compose(MODEL, LAYOUT, [HEAD, long[0], Segment([7], glue=True), long[1]], rows)
    assert 0.01 < plan.short_glue_share < 0.02
    assert plan.notes() == []
