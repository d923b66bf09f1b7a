"""Block-wise statistics against a float64 computation that materialises everything."""

import numpy as np
import pytest
import torch

from sift_index.kernels import statistics
from sift_index.kernels.api import (
    causal_attention,
    local_scores,
    nested_levels,
    paper_statistics,
    probe_scores,
    turn,
)
from sift_index.kernels.dense import causal_log_sum_exp

HEADS, KV, DIM, SCALE = 4, 2, 16, 0.25


def tensors(rows: int, keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows * 1000 + keys)
    return torch.randn(HEADS, rows, DIM) * 2, torch.randn(KV, keys, DIM) * 2


def scores64(q: torch.Tensor, k: torch.Tensor) -> np.ndarray:
    keys = k.double().numpy().repeat(HEADS // KV, axis=0)
    return np.einsum("hrd,hkd->hrk", q.double().numpy(), keys) * SCALE


def causal64(q: torch.Tensor, k: torch.Tensor, prefix: int) -> np.ndarray:
    """Probabilities of document rows on the document's own keys, [heads, n, n]."""
    scores = scores64(q, k)
    n = q.shape[1]
    visible = np.arange(prefix + n)[None] <= np.arange(n)[:, None] + prefix
    weights = np.where(visible, np.exp(scores - scores.max(-1, keepdims=True)), 0.0)
    return (weights / weights.sum(-1, keepdims=True))[..., prefix:]


def log_sum_exp64(q: torch.Tensor, k: torch.Tensor, prefix: int) -> torch.Tensor:
    n = q.shape[1]
    visible = np.arange(prefix + n)[None] <= np.arange(n)[:, None] + prefix
    return torch.from_numpy(np.log((np.exp(scores64(q, k)) * visible).sum(-1))).float()


def pages64(per_key: np.ndarray, size: int) -> np.ndarray:
    return np.stack(
        [per_key[..., at : at + size].mean(-1) for at in range(0, per_key.shape[-1], size)], -1
    )


@pytest.mark.parametrize("n", [1, 31, 33, 200])
def test_probe_scores(n):
    q, k = tensors(192, n)
    lse = torch.randn(HEADS, 192) + 3
    scores = scores64(q, k)
    own = np.exp(scores).sum(-1) + np.exp(lse.double().numpy())
    p = np.exp(scores) / own[..., None]
    best = np.stack([p[:, at : at + 64].mean(1) for at in (0, 64, 128)]).max(0)
    found = probe_scores(q, lse, k, 64, 32, SCALE)
    np.testing.assert_allclose(found.numpy(), pages64(best, 32), rtol=2e-5)


def test_probe_scores_do_not_depend_on_the_block_size(monkeypatch):
    q, k = tensors(320, 70)
    lse = torch.randn(HEADS, 320)
    whole = probe_scores(q, lse, k, 64, 8, SCALE)
    monkeypatch.setattr(statistics, "block_scores", lambda device: 1)
    torch.testing.assert_close(probe_scores(q, lse, k, 64, 8, SCALE), whole)


@pytest.mark.parametrize("page", [16, 32, 128])
@pytest.mark.parametrize("n", [1, 127, 129, 400])
def test_local_scores(n, page):
    prefix = 11
    q, k = tensors(n, prefix + n)
    p = causal64(q, k, prefix)
    expected = []
    for begin in range(0, n, 128):
        rows = p[:, begin : min(begin + 128, n), : min(begin + 128, n)]
        windows = [rows[:, at : at + 64].mean(1) for at in range(0, rows.shape[1], 64)]
        best = np.max(windows, axis=0)
        tiles = [best[..., at : at + 128] for at in range(0, best.shape[-1], 128)]
        expected += [pages64(tile, page).max(-1) for tile in tiles]
    lse = log_sum_exp64(q, k, prefix)
    found = local_scores(q, k[:, prefix:], lse, 64, page, SCALE)
    np.testing.assert_allclose(found.numpy(), np.stack(expected, -1), rtol=2e-5)


@pytest.mark.parametrize("n", [1, 128, 300])
def test_paper_statistics(n):
    q, k = tensors(n, n)
    p = causal64(q, k, 0)
    maxima, counts = paper_statistics(q, k, log_sum_exp64(q, k, 0), 0.01, SCALE)
    tiles = range(0, n, 128)
    expected = [p[:, r : r + 128, c : c + 128].max((1, 2)) for r in tiles for c in tiles if c <= r]
    np.testing.assert_allclose(maxima.numpy(), np.stack(expected, -1), rtol=2e-5)
    # Counts may move by one where a score sits on the threshold to float32 precision.
    high = (p >= 0.01).sum(1)
    assert np.abs(counts.numpy() - high).max() <= 1
    assert np.mean(counts.numpy() == high) > 0.999


def test_local_scores_do_not_depend_on_the_run_of_keys(monkeypatch):
    q, k = tensors(700, 700)
    lse = log_sum_exp64(q, k, 0)
    whole = local_scores(q, k, lse, 64, 32, SCALE)
    monkeypatch.setattr(statistics, "block_scores", lambda device: 1)
    torch.testing.assert_close(local_scores(q, k, lse, 64, 32, SCALE), whole)


@pytest.mark.parametrize("n", [1, 129, 300])
def test_dense_attention_returns_its_log_sum_exp(n):
    q, k = tensors(n, n)
    v = torch.randn(KV, n, DIM)
    out, lse = causal_attention(q, k, v, SCALE)
    expected = causal64(q, k, 0) @ v.double().numpy().repeat(HEADS // KV, axis=0)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(lse.numpy(), log_sum_exp64(q, k, 0).numpy(), rtol=1e-5)
    # The tile-wise form other devices use gives the same.
    torch.testing.assert_close(causal_log_sum_exp(q, k, SCALE), lse)


def test_nested_levels_count_thresholds_exceeded():
    scores = torch.tensor([0.1, 0.2, 0.3, 0.5])
    assert nested_levels(scores, (0.1, 0.25, 0.4)).tolist() == [0, 1, 2, 3]


def test_turning_keys_equals_rotating_at_the_other_position():
    frequencies = 1.0 / 10000 ** (torch.arange(0, 8, 2) / 8)
    raw = torch.randn(3, DIM)
    at = turn(raw, 4097, frequencies)
    torch.testing.assert_close(turn(at, -4000, frequencies), turn(raw, 97, frequencies))
    assert torch.equal(at[:, 8:], raw[:, 8:])  # dimensions outside the rotary part
