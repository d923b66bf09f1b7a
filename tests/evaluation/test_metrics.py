"""Metrics against values worked out by hand."""

import math

import numpy as np
import pytest
import torch

from sift_index.evaluation.metrics import Interval, answer_nll, bootstrap, divergence


def logits(*rows: list[float]) -> torch.Tensor:
    """Return logits whose softmax is `rows`, moved by a constant, which must not matter."""
    return torch.tensor(rows).log() + 3.0


def test_divergence_is_the_mean_over_tokens_from_dense_to_sparse():
    dense = logits([0.5, 0.25, 0.25], [0.2, 0.2, 0.6])
    sparse = logits([0.25, 0.5, 0.25], [0.2, 0.2, 0.6])
    kl, top1 = divergence(dense, sparse)
    assert kl == pytest.approx((0.5 * math.log(2) + 0.25 * math.log(0.5)) / 2, rel=1e-5)
    assert top1 == 0.5


def test_divergence_is_not_symmetric():
    one, other = logits([0.9, 0.1]), logits([0.5, 0.5])
    assert divergence(one, other)[0] == pytest.approx(
        0.9 * math.log(1.8) + 0.1 * math.log(0.2), rel=1e-5
    )
    assert divergence(other, one)[0] == pytest.approx(
        0.5 * math.log(1 / 1.8) + 0.5 * math.log(5), rel=1e-5
    )


def test_equal_logits_diverge_by_nothing_and_never_less():
    values = torch.randn(5, 300) * 10
    assert divergence(values, values.clone()) == (0.0, 1.0)
    assert divergence(values, values + torch.randn(5, 300) * 1e-7)[0] >= 0.0


def test_answer_nll_is_the_mean_of_minus_log_probabilities():
    values = logits([0.5, 0.25, 0.25], [0.2, 0.2, 0.6])
    assert answer_nll(values, [1, 2]) == pytest.approx(-(math.log(0.25) + math.log(0.6)) / 2)


def test_bootstrap_of_equal_values_is_a_point():
    found = bootstrap([0.3] * 7)
    assert (found.mean, found.low, found.high) == pytest.approx((0.3, 0.3, 0.3))


def test_bootstrap_of_two_prompts_by_hand():
    # Means of two draws from {0, 1}: 0, 1/2, 1 with probabilities 1/4, 1/2, 1/4.
    assert bootstrap([0.0, 1.0]) == Interval(0.5, 0.0, 1.0)


def test_bootstrap_is_about_two_standard_errors_wide_and_repeatable():
    values = np.random.default_rng(3).normal(5.0, 2.0, 400).tolist()
    found = bootstrap(values)
    error = np.std(values) / 20
    assert found.mean == pytest.approx(np.mean(values))
    assert found.low == pytest.approx(found.mean - 1.96 * error, abs=0.15 * error)
    assert found.high == pytest.approx(found.mean + 1.96 * error, abs=0.15 * error)
    assert bootstrap(values) == found
