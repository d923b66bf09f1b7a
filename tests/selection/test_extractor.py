"""Masks end to end, from token ids through a real model, against full float64 attention."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sift_index.errors import UsageError
from sift_index.formats.identity import anchor, document_key
from sift_index.kernels.api import turn
from sift_index.models.support import TESTED_TYPES
from sift_index.selection.extractor import Extractor, rethreshold
from sift_index.selection.policy import PaperPolicy, ProbePolicy
from tests.attention import eager
from tests.plans import loaded, tiny, tokens
from tests.selection.observed import (
    between_values,
    ca_statistic,
    la_statistic,
    levels,
    observe,
    write_probes,
)

PREFIX = tokens(11, seed=5)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS = {
    **{name: (name, {}) for name in TESTED_TYPES},
    "yarn": ("llama", {"rope_parameters": {**YARN, "rope_theta": 10000.0}}),
    "llama3": ("llama", {"rope_parameters": {**LLAMA3, "rope_theta": 10000.0}}),
    "linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
    ),
}


@pytest.fixture(scope="module")
def probes(tmp_path_factory) -> str:
    return write_probes(tmp_path_factory.mktemp("probes"))


def policy_of(probes: str, **changes) -> ProbePolicy:
    """Return a policy that marks every layer, so that all of them are compared."""
    values = {"window": 16, "skip_last_layer": False, "probe_source": probes, "probe_tokens": 200}
    return ProbePolicy(**{**values, **changes})


def extracted(model, policy, ids, prefix=PREFIX):
    return Extractor(loaded(model), policy, prefix).extract(ids)


def check(found: np.ndarray, statistic: np.ndarray, thresholds, noise: float = 1e-6) -> None:
    """Equal but where a value lies within `noise` of a threshold; never all on or all off."""
    least = levels(statistic * (1 - noise), thresholds)
    most = levels(statistic * (1 + noise), thresholds)
    assert found.shape == statistic.shape
    assert (least <= found).all()
    assert (found <= most).all()
    assert len(np.unique(found)) > len(thresholds)


@pytest.mark.parametrize("name", MODELS)
def test_ca_of_every_architecture(probes, name):
    model_type, overrides = MODELS[name]
    model, ids = tiny(model_type, **overrides), tokens(205)
    policy = policy_of(probes)
    statistic = ca_statistic(loaded(model), policy, PREFIX, ids)
    policy = replace(policy, ca_thresholds=between_values(statistic, 0.5))
    masks = extracted(model, policy, ids)
    assert masks.la is None
    check(masks.ca.unpacked(), statistic, policy.ca_thresholds)


@pytest.mark.parametrize(("page_size", "window"), [(8, 64), (16, 1), (32, 1), (64, 128), (128, 2)])
@pytest.mark.parametrize("n", [1, 127, 300])
def test_ca_of_every_page_size(probes, page_size, window, n):
    model, ids = tiny("llama"), tokens(n)
    policy = policy_of(probes, page_size=page_size, window=window)
    statistic = ca_statistic(loaded(model), policy, PREFIX, ids)
    policy = replace(policy, ca_thresholds=between_values(statistic, 0.4))
    masks = extracted(model, policy, ids)
    assert masks.ca.entries == -(-n // page_size)
    check(masks.ca.unpacked(), statistic, policy.ca_thresholds)


def test_a_window_of_one_is_the_highest_probability_of_any_row(probes):
    model, ids = tiny("minimax_m2"), tokens(205)
    one, two = (policy_of(probes, window=window) for window in (1, 2))
    statistic, averaged = (ca_statistic(loaded(model), p, PREFIX, ids) for p in (one, two))
    assert (statistic > averaged * 1.01).mean() > 0.9  # so the windows are told apart below
    thresholds = between_values(statistic, 0.5)
    masks = extracted(model, replace(one, ca_thresholds=thresholds), ids)
    check(masks.ca.unpacked(), statistic, thresholds)
    other = extracted(model, replace(two, ca_thresholds=thresholds), ids)
    assert other.ca.unpacked().sum() < masks.ca.unpacked().sum()


@pytest.mark.parametrize(
    ("page_size", "window", "la_window"), [(32, 1, 64), (8, 16, 128), (128, 64, 1), (64, 128, 2)]
)
def test_la_of_a_document_of_more_than_eight_tiles(probes, page_size, window, la_window):
    model, ids = tiny("llama"), tokens(1100)
    policy = policy_of(probes, page_size=page_size, window=window, la_window=la_window)
    statistic = la_statistic(loaded(model), policy, PREFIX, ids)
    policy = replace(policy, la_thresholds=between_values(statistic, 0.5))
    masks = extracted(model, policy, ids)
    assert masks.la is not None
    assert masks.la.entries == 9
    check(masks.la.unpacked(), statistic, policy.la_thresholds)


def test_two_bits_count_nested_thresholds_for_la_and_ca(probes):
    model, ids = tiny("minimax_m2"), tokens(400)
    policy = policy_of(probes, la_dense_tiles=3, la_window=32)
    ca, la = (f(loaded(model), policy, PREFIX, ids) for f in (ca_statistic, la_statistic))
    policy = replace(
        policy,
        ca_thresholds=between_values(ca, 0.3, 0.6, 0.9),
        la_thresholds=between_values(la, 0.2, 0.5, 0.8),
    )
    masks = extracted(model, policy, ids)
    check(masks.ca.unpacked(), ca, policy.ca_thresholds)
    check(masks.la.unpacked(), la, policy.la_thresholds)
    for number in range(3):
        one = replace(
            policy,
            ca_thresholds=policy.ca_thresholds[number : number + 1],
            la_thresholds=policy.la_thresholds[number : number + 1],
        )
        alone = extracted(model, one, ids)
        assert np.array_equal(masks.ca.unpacked() > number, alone.ca.unpacked() > 0)
        assert np.array_equal(masks.la.unpacked() > number, alone.la.unpacked() > 0)


def test_a_single_la_threshold_stays_on_at_every_level_of_ca(probes):
    model, ids = tiny("llama"), tokens(400)
    policy = policy_of(probes, la_dense_tiles=1, ca_thresholds=(0.001, 0.002))
    la = la_statistic(loaded(model), policy, PREFIX, ids)
    policy = replace(policy, la_thresholds=between_values(la, 0.5))
    masks = extracted(model, policy, ids)
    assert set(np.unique(masks.la.unpacked())) == {0, 3}
    assert set(np.unique(masks.ca.unpacked())) <= {0, 1, 3}
    assert np.array_equal(masks.la.unpacked() > 0, la > policy.la_thresholds[0])


def test_kv_sharing_thresholds_the_mean_over_a_group(probes):
    model, ids = tiny("llama"), tokens(400)
    policy = policy_of(probes, head_sharing="kv", la_dense_tiles=0)
    both = (f(loaded(model), policy, PREFIX, ids) for f in (ca_statistic, la_statistic))
    ca, la = (s.reshape(2, 2, 2, -1).mean(2) for s in both)  # layers, kv heads, group, entries
    policy = replace(
        policy, ca_thresholds=between_values(ca, 0.5), la_thresholds=between_values(la, 0.5)
    )
    masks = extracted(model, policy, ids)
    assert masks.ca.heads == 2
    check(masks.ca.unpacked(), ca, policy.ca_thresholds)
    check(masks.la.unpacked(), la, policy.la_thresholds)


WEIGHTS = ((0.5, 2.0, 1.0, 0.0), (3.0, 0.25, 1.5, 1.0))


@pytest.mark.parametrize("model_type", ["llama", "minimax_m2"])
def test_head_weights_multiply_the_ca_statistic(probes, model_type):
    model, ids = tiny(model_type), tokens(400)
    policy = policy_of(probes, la_dense_tiles=0)
    ca, la = (f(loaded(model), policy, PREFIX, ids) for f in (ca_statistic, la_statistic))
    weighted = ca * np.array(WEIGHTS)[:, :, None]
    policy = replace(
        policy,
        ca_thresholds=between_values(weighted, 0.3, 0.6, 0.9),
        la_thresholds=between_values(la, 0.5),
    )
    plain, found = (
        extracted(model, replace(policy, head_weights=weights), ids) for weights in ((), WEIGHTS)
    )
    check(found.ca.unpacked(), weighted, policy.ca_thresholds)
    assert not found.ca.unpacked()[0, 3].any()  # of no weight
    assert not np.array_equal(found.ca.unpacked(), plain.ca.unpacked())
    assert np.array_equal(found.la.packed, plain.la.packed)  # the document's own rows are not


def test_head_weights_apply_before_the_mean_over_a_group(probes):
    model, ids = tiny("llama"), tokens(400)
    policy = policy_of(probes, head_sharing="kv", head_weights=WEIGHTS)
    ca = ca_statistic(loaded(model), policy, PREFIX, ids) * np.array(WEIGHTS)[:, :, None]
    shared = ca.reshape(2, 2, 2, -1).mean(2)  # layers, kv heads, group, pages
    policy = replace(policy, ca_thresholds=between_values(shared, 0.3, 0.6, 0.9))
    masks = extracted(model, policy, ids)
    assert masks.ca.heads == 2
    check(masks.ca.unpacked(), shared, policy.ca_thresholds)


@pytest.mark.parametrize("sharing", ["query", "kv"])
@pytest.mark.parametrize(("layers", "heads"), [(1, 4), (3, 4), (2, 2), (2, 8), (4, 2)])
def test_head_weights_of_another_model_are_refused(probes, layers, heads, sharing):
    table = ((1.0,) * heads,) * layers
    message = f"expected head_weights of 2 layers x 4 heads, found {layers} x {heads}; tune"
    with pytest.raises(UsageError, match=message):
        Extractor(
            loaded(tiny("llama")),
            policy_of(probes, head_weights=table, head_sharing=sharing),
            PREFIX,
        )


@pytest.mark.parametrize("sharing", ["query", "kv"])
def test_the_last_layer_may_be_left_out(probes, sharing):
    model, ids = tiny("llama", num_hidden_layers=3), tokens(300)
    kept = policy_of(probes, la_dense_tiles=2, head_sharing=sharing)
    scores = Extractor(loaded(model), kept, PREFIX).scores(ids).layers
    ca, la = scores[1].ca, scores[1].la
    assert la is not None
    least = 1e-9  # every statistic is above this
    kept = replace(
        kept,
        ca_thresholds=(least, float(ca.median())),
        la_thresholds=(least, float(la.median())),
    )
    everything = extracted(model, kept, ids)
    masks = extracted(model, replace(kept, skip_last_layer=True), ids)
    for kind in ("ca", "la"):
        found, full = getattr(masks, kind).unpacked(), getattr(everything, kind).unpacked()
        assert full.min() >= 1
        assert set(np.unique(full[:2])) == {1, 3}
        assert np.array_equal(found[:2], full[:2])
        assert not found[2].any()


def test_a_skipped_last_layer_of_a_short_document_keeps_la_dense(probes):
    masks = extracted(tiny("llama"), policy_of(probes, skip_last_layer=True), tokens(300))
    assert masks.la is None
    assert not masks.ca.unpacked()[1].any()


def test_other_thresholds_on_kept_scores_are_the_masks_of_that_policy(probes):
    model, ids = tiny("llama"), tokens(400)
    policy = policy_of(
        probes, la_dense_tiles=0, head_sharing="kv", head_weights=WEIGHTS, skip_last_layer=True
    )
    extractor = Extractor(loaded(model), policy, PREFIX)
    scores = extractor.scores(ids)
    assert scores.ids == tuple(ids)
    ca, la = (
        torch.stack([getattr(layer, kind) for layer in scores.layers]) for kind in ("ca", "la")
    )
    shape = (2, 2, -1)
    assert (ca.reshape(shape).shape, la.reshape(shape).shape) == ((2, 2, 13), (2, 2, 10))
    found = []
    for share in (0.2, 0.7):
        other = replace(
            policy,
            ca_thresholds=between_values(ca.numpy(), share),
            la_thresholds=between_values(la.numpy(), share),
        )
        masks = rethreshold(extractor.layout, scores, other)
        assert masks == extracted(model, other, ids)
        assert masks.la is not None
        found.append((masks.ca.unpacked().mean(), masks.la.unpacked().mean()))
    assert found[0][0] > found[1][0] > 0
    assert found[0][1] > found[1][1] > 0
    assert rethreshold(extractor.layout, scores, policy) == extractor.extract(ids)


def test_kept_scores_give_two_bits_too(probes):
    model, ids = tiny("llama"), tokens(300)
    policy = policy_of(probes, ca_thresholds=(0.1, 0.2, 0.3))
    extractor = Extractor(loaded(model), policy, PREFIX)
    scores = extractor.scores(ids)
    values = torch.stack([layer.ca for layer in scores.layers]).numpy()
    policy = replace(policy, ca_thresholds=between_values(values, 0.2, 0.5, 0.8))
    masks = rethreshold(extractor.layout, scores, policy)
    assert masks.la is None
    assert set(np.unique(masks.ca.unpacked())) == {0, 1, 2, 3}
    assert masks == extracted(model, policy, ids)


@pytest.mark.parametrize(("n", "stored"), [(1024, False), (1025, True)])
def test_only_documents_of_more_than_eight_tiles_store_la(probes, n, stored):
    masks = extracted(tiny("llama"), policy_of(probes, window=64), tokens(n))
    assert (masks.la is not None) is stored


def test_the_row_says_which_document_it_is(probes):
    ids = tokens(40)
    masks = extracted(tiny("llama"), policy_of(probes), ids)
    assert (masks.key, masks.anchor, masks.tokens) == (document_key(ids), anchor(ids), 40)
    assert masks.ca.padding_is_zero()


def test_the_prefix_matters(probes):
    model, ids = tiny("llama"), tokens(300)
    policy = policy_of(probes, page_size=8)
    statistic = ca_statistic(loaded(model), policy, PREFIX, ids)
    policy = replace(policy, ca_thresholds=between_values(statistic, 0.5))
    one, other = (extracted(model, policy, ids, tokens(11, seed=s)) for s in (5, 6))
    assert not np.array_equal(one.ca.packed, other.ca.packed)


@pytest.mark.parametrize("prefix", [[], PREFIX])
def test_a_document_that_is_empty_or_too_long_is_refused(probes, prefix):
    model = tiny("llama", max_position_embeddings=250)
    extractor = Extractor(loaded(model), policy_of(probes), prefix)
    assert extractor.longest == 250 - len(prefix)
    assert extractor.extract(tokens(extractor.longest)).tokens == extractor.longest
    for n in (0, extractor.longest + 1):
        with pytest.raises(UsageError, match=f"1 to {extractor.longest} tokens, found {n}"):
            extractor.extract(tokens(n))


@pytest.mark.parametrize(
    "ids, message",
    [
        ([1, 320], "below the vocabulary size 320, found 320; use the tokenizer"),
        ([1, -1], "token ids: expected one dimension of integers"),
        ("hello", "token ids: expected one dimension of integers"),
        (torch.ones(1, 3, dtype=torch.int64), "token ids: expected one dimension of integers"),
    ],
)
def test_ids_that_are_none_of_the_model_are_refused(probes, ids, message):
    extractor = Extractor(loaded(tiny("llama")), policy_of(probes), PREFIX)
    with pytest.raises(UsageError, match=message):
        extractor.launch([tokens(5), ids])
    with pytest.raises(UsageError, match="at least one document, found none"):
        extractor.launch([])


# --- the paper's rule -------------------------------------------------------------------------


@pytest.mark.parametrize("normalisation", ["earlier", "remaining"])
@pytest.mark.parametrize("n", [1, 128, 300, 700])
def test_the_paper_policy_is_its_definition(n, normalisation):
    model, ids = tiny("llama"), tokens(n)
    seen = observe(model, ids)  # alone: the rule has no prefix
    p = np.stack([seen.probabilities(layer) for layer in range(2)])
    tiles = [(r, c) for r in range(0, n, 128) for c in range(0, r + 1, 128)]
    maxima = np.stack([p[:, :, r : r + 128, c : c + 128].max((2, 3)) for r, c in tiles], -1)
    alpha = between_values(maxima, 0.5)[0] if n > 128 else 0.001
    gamma = 0.03 if normalisation == "earlier" else 0.09
    policy = PaperPolicy(alpha=alpha, beta=0.02, gamma=gamma, normalisation=normalisation)
    rows = np.arange(1, n + 1) if normalisation == "earlier" else np.arange(n, 0, -1)
    masks = extracted(model, policy, ids)
    for noise, compare in ((1 - 1e-6, np.less_equal), (1 + 1e-6, np.greater_equal)):
        high = p >= policy.beta / noise
        strong = high.sum(2) / rows >= policy.gamma
        any_strong = [strong[..., a : a + 128].any(-1) for a in range(0, n, 128)]
        assert compare(np.stack(any_strong, -1), masks.ca.unpacked() == 1).all()
        forced = np.array([r == c or c == 0 for r, c in tiles])
        assert compare((maxima >= alpha / noise) | forced, masks.la.unpacked() == 1).all()
    assert masks.la is not None  # always stored
    assert masks.ca.granule == 128
    if n == 700:
        assert set(np.unique(masks.la.unpacked())) == {0, 1}
        assert set(np.unique(masks.ca.unpacked())) == {0, 1}


def test_a_share_of_exactly_gamma_is_strong():
    model, ids = tiny("llama"), tokens(300)
    high = (observe(model, ids).probabilities(0) >= 0.02).sum(1)
    shares = (high / np.arange(1, 301)).astype(np.float32)[0, 128:256]  # head 0, page 1
    for step, bit in ((1.0, 1), (1.0 + 1e-5, 0)):
        policy = PaperPolicy(beta=0.02, gamma=float(shares.max()) * step)
        assert extracted(model, policy, ids).ca.unpacked()[0, 0, 1] == bit


def test_the_paper_layout_has_no_boundary_window():
    layout = Extractor(loaded(tiny("llama")), PaperPolicy(), PREFIX).layout
    assert (layout.boundary, layout.neighbour, layout.page_size) == (0, False, 128)
    assert Extractor(loaded(tiny("llama")), PaperPolicy(), PREFIX).longest == 4096


# --- keys turn as if they stood elsewhere ------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_turned_keys_are_those_of_the_other_position(name):
    model_type, overrides = MODELS[name]
    model, ids, n = tiny(model_type, **overrides), tokens(60), 700
    keys = []
    for start in (n + 11, 11):  # layer 0's keys depend on token and position alone
        with torch.inference_mode(), eager(model) as seen:
            positions = torch.arange(start, start + len(ids))[None]
            model(torch.tensor([ids]), position_ids=positions, use_cache=False)
        keys.append(seen.k[0])
    turned = turn(keys[0], -n, model.model.rotary_emb.inv_freq)
    assert (keys[0] - keys[1]).abs().max() > 0.1
    torch.testing.assert_close(turned, keys[1], atol=2e-3, rtol=1e-3)
    if name == "yarn":  # the factor is in the keys once, so it must not change their length
        assert model.model.rotary_emb.attention_scaling > 1.05
