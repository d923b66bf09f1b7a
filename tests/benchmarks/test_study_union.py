"""Unions of probe scores and a document's own, against full attention in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.study_union import OwnAndProbe, own_scores, study
from sift_index.evaluation.methods.registry import Setting
from sift_index.kernels.api import TILE
from sift_index.selection.extractor import Extractor
from sift_index.selection.policy import ProbePolicy
from tests.plans import loaded, tiny, tokens
from tests.selection.observed import observe, pages

MODEL = loaded(tiny("llama", num_hidden_layers=3))
PREFIX, IDS = tokens(7), tokens(330, seed=1)
POLICY = ProbePolicy()


def own_truth() -> np.ndarray:
    """Return [layers, heads, pages]: highest attention of rows a tile or more behind each key."""
    seen = observe(MODEL.model, [*PREFIX, *IDS])
    p = np.stack([seen.probabilities(layer) for layer in range(3)])[..., len(PREFIX) :, :]
    p = p[..., len(PREFIX) :]
    distance = np.arange(len(IDS))[:, None] - np.arange(len(IDS))
    return pages(np.where(distance >= TILE, p, 0.0).max(-2), POLICY.page_size)


def probe_truth() -> np.ndarray:
    """Return [layers, heads, pages]: scores under the default's rule."""
    layers = Extractor(MODEL, POLICY, PREFIX).scores(IDS).layers
    return np.stack([layer.ca.numpy() for layer in layers])


@pytest.mark.parametrize("factor", [0.125, 0.25, 0.5])
def test_a_page_is_on_by_either_score(factor):
    probe, own = probe_truth(), own_truth()
    threshold = float(np.quantile(np.maximum(probe, own / factor)[:-1], 0.4))
    masks = OwnAndProbe(MODEL, POLICY, PREFIX).masks(factor, threshold, IDS)
    by_probe, by_own = probe > threshold, own > factor * threshold
    by_own[-1] = False  # the last layer is skipped
    assert np.array_equal(masks.ca.unpacked() > 0, by_probe | by_own)
    assert (by_probe & ~by_own).any() and (by_own & ~by_probe).any()


def test_without_own_attention_the_masks_are_the_default_s():
    threshold = float(np.quantile(probe_truth()[:-1], 0.5))
    default = replace(POLICY, ca_thresholds=(threshold,))
    expected = Extractor(MODEL, default, PREFIX).extract(IDS).ca.unpacked()
    both = OwnAndProbe(MODEL, POLICY, PREFIX)
    alone = both.masks(float("inf"), threshold, IDS).ca.unpacked()
    assert np.array_equal(alone, expected)
    assert both.masks(0.125, threshold, IDS).ca.unpacked().sum() > alone.sum()


def test_keys_of_the_last_tile_have_no_row_far_behind_them():
    torch.manual_seed(0)
    q, k = torch.randn(4, 200, 16), torch.randn(2, 200, 16)
    lse = torch.zeros(4, 200)
    found = own_scores(q, k, lse, 8, 0.25)
    assert found.shape == (4, 25)
    # The last row is 199: key 71 is the last that a row is a tile behind.
    assert bool((found[:, :9] > 0).all()) and not found[:, 9:].any()


def test_every_threshold_and_factor_is_a_method():
    methods = study(Setting(MODEL), POLICY).methods
    assert {"probe@0.003", "own x 0.5@0.006", "own x 1@0.003", "own x 2@0.012"} <= methods.keys()
    assert len(methods) == 12
