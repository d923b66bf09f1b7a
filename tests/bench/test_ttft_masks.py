"""Prompts with random masks: composed like any other, as dense as was asked for."""

import numpy as np
import pytest

from sift_index.bench.ttft_cases import TTFTCase
from sift_index.bench.ttft_masks import random_prompt, tile_chance
from sift_index.kernels.api import MaskLayout, layer_densities, plan_density
from tests.bench.ttft_problems import LONG_CASE

LAYOUT = MaskLayout(layers=3, heads=8, mask_heads=8, page_size=32)
MANY = TTFTCase(8192, 1024)
IDS = np.random.default_rng(0).integers(0, 1000, 8192).tolist()


def plan_of(case, ca, la=0.4):
    table = np.broadcast_to(np.asarray(ca, float).reshape(-1, 1), (3, 8))
    return random_prompt(case, IDS[: case.tokens], LAYOUT, table, la).compose()


def test_documents_are_found_by_key_and_short_ones_have_no_la_bits():
    plan = plan_of(MANY, 0.2)
    assert [(span.start, span.stop) for span in plan.spans] == MANY.spans
    assert all(span.la is None for span in plan.spans)
    assert plan.length == 8192


def test_bits_are_as_dense_as_their_layer():
    shares = (0.0, 0.2, 0.6)
    found = [layer.ca.share for layer in layer_densities(plan_of(MANY, shares))]
    window = found[0]  # rule 4, whatever the bits say
    assert window < 0.01
    assert found[1:] == pytest.approx([0.2 + window, 0.6 + window], abs=0.02)


def test_documents_differ_in_their_bits():
    one, two, *_ = plan_of(MANY, 0.3).spans
    assert not np.array_equal(one.ca.numpy(), two.ca.numpy())


@pytest.mark.parametrize("la", [0.4, 0.7])
def test_long_documents_have_the_la_density_asked_for(la):
    long = TTFTCase(8192, 4096)
    plan = plan_of(long, 0.1, la)
    assert all(span.la is not None for span in plan.spans if span.tokens > 1024)
    assert plan_density(plan).la.share == pytest.approx(la, abs=0.02)


def test_no_chance_makes_a_triangle_sparser_than_its_forced_tiles():
    assert tile_chance(0.01, 9) == 0.0
    assert tile_chance(1.0, 9) == 1.0
    assert plan_of(LONG_CASE, 0.1, 1.0).spans[0].la is not None
    assert plan_density(plan_of(LONG_CASE, 0.1, 1.0)).la.share == 1.0
