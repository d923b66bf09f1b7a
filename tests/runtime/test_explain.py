"""What is said about a plan is what it does."""

import json

import pytest

from sift_index.prompts import Segment
from sift_index.runtime.explain import REASONS, explain
from tests.kernels.naive import naive_mask
from tests.plans import tokens
from tests.runtime.test_plan import DOCUMENTS, HEAD, QUERY, plan_of


def test_segments_say_what_they_became_and_why():
    found = explain(plan_of(HEAD, DOCUMENTS[0], tokens(50), [], DOCUMENTS[1], QUERY))
    assert [(one.kind, one.stop - one.start, one.reason) for one in found.segments] == [
        ("glue", 11, "declared_glue"),
        ("span", 200, "indexed"),
        ("glue", 50, "not_indexed"),
        ("glue", 0, "empty"),
        ("span", 200, "indexed"),
        ("glue", 17, "declared_glue"),
    ]
    assert (found.tokens, found.hits, found.misses, found.level) == (478, 2, 1, 1)
    values = json.loads(json.dumps(found.to_json()))
    assert values["segments"][2]["why"] == REASONS["not_indexed"]
    assert values["segments"][1]["tokens"] == 200


def test_densities_are_those_of_the_masks_layer_by_layer():
    plan = plan_of(HEAD, *DOCUMENTS, QUERY)
    found = explain(plan)
    cells = plan.length * (plan.length + 1) // 2 * 4
    expected = [int(naive_mask(plan.sparse, layer).sum()) / cells for layer in range(2)]
    assert [one.density for one in found.layers] == pytest.approx(expected)
    assert found.layers[0] != found.layers[1]
    assert found.total.density == pytest.approx(sum(expected) / 2)
    assert found.most == pytest.approx(1 / found.total.density)


def test_notes_of_the_composition_are_passed_on():
    between = Segment([7, 7], glue=True)
    plan = plan_of(HEAD, DOCUMENTS[0], between, DOCUMENTS[1], between, DOCUMENTS[2], QUERY)
    assert explain(plan).notes[:1] == tuple(plan.notes()) != ()


def test_an_empty_prompt():
    found = explain(plan_of())
    assert (found.tokens, found.segments, found.most) == (0, (), 1.0)
