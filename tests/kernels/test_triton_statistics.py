"""Statistics kernels against torch: on a GPU compiled, elsewhere interpreted."""

import pytest
import torch

from sift_index.kernels.packed import Packed
from sift_index.kernels.packed_attention import PackedAttention
from sift_index.kernels.packed_statistics import PackedStatistics
from sift_index.selection.agreement import Agreement, level_agreement
from tests.kernels.packs import (
    HEADS,
    bank,
    frequencies,
    tensors,
    true_local_scores,
    true_probe_scores,
)
from tests.selection.observed import between_values

probe_kernels = pytest.importorskip("sift_index.kernels.triton_probe_statistics")
local_kernels = pytest.importorskip("sift_index.kernels.triton_local_statistics")

# Keys are turned in float32 and rounded to 11 bits where the model's have 16.
RELATIVE = {torch.float32: 1e-5, torch.float16: 1e-3}


def close(found: torch.Tensor, truth: torch.Tensor, relative: float) -> None:
    assert found.shape == truth.shape
    assert ((found - truth).abs() <= relative * truth).all()


def agrees(found: torch.Tensor, truth: torch.Tensor, relative: float) -> Agreement:
    """Compare levels by two thresholds: no entry differs but ties, whose number is returned."""
    thresholds = between_values(truth[truth > 0].cpu().numpy(), 0.5, 0.8)
    agreement = level_agreement(truth, found, thresholds, relative)
    assert agreement.errors == 0
    return agreement


@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
@pytest.mark.parametrize(
    ("window", "page", "dim", "pairs"), [(1, 32, 32, 16), (16, 8, 32, 8), (128, 128, 16, 6)]
)
def test_probe_scores(device, dtype, window, page, dim, pairs):
    packed = Packed(11, (1, 130, 300, 64))
    q, lse = bank(256 if window == 128 else 208, dim, device, dtype)
    _, k, _ = tensors(packed, dim, device, dtype)
    inverse, scale = frequencies(pairs, device), dim**-0.5
    tables = probe_kernels.probe_tables(packed, page, inverse)
    found = probe_kernels.probe_scores(q, lse, k, tables, window, scale)
    truth = true_probe_scores(q, lse, k, packed, inverse, window, page, scale)
    close(found, truth, RELATIVE[dtype])
    assert agrees(found, truth, RELATIVE[dtype]).share < 0.01


@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
@pytest.mark.parametrize(
    ("window", "page", "lengths"),
    [(64, 32, (129, 60, 384)), (1, 8, (257, 128, 130)), (128, 128, (300, 1, 256))],
)
def test_local_scores(device, dtype, window, page, lengths):
    packed = Packed(11, lengths)
    q, k, v = tensors(packed, 32, device, dtype)
    scale = 32**-0.5
    _, lse = PackedAttention(packed, device)(q, k, v, scale)
    tables = local_kernels.local_tables(packed, 1, page, device)
    found = local_kernels.local_scores(q, k, lse, tables, window, scale)
    truth = true_local_scores(q, k, lse, packed, 1, window, page, scale)
    close(found, truth, 1e-5)
    assert agrees(found, truth, 1e-5).share < 0.01


def test_an_overwhelming_key_takes_all_attention(device):
    """Odds beyond float32 give a probability of 1, as the truth does."""
    packed = Packed(0, (40,))
    q, lse = bank(64, 16, device)
    _, k, _ = tensors(packed, 16, device)
    k[:, 7] *= 1000.0
    inverse = frequencies(8, device)
    tables = probe_kernels.probe_tables(packed, 8, inverse)
    found = probe_kernels.probe_scores(q, lse, k, tables, 1, 1.0)
    truth = true_probe_scores(q, lse, k, packed, inverse, 1, 8, 1.0)
    torch.testing.assert_close(found[:, 0], truth[:, 0], rtol=1e-4, atol=0.0)
    assert torch.isfinite(found).all() and (found <= 1.0).all()


def test_the_longest_columns_come_first(device):
    tables = local_kernels.local_tables(Packed(5, (300, 700)), 0, 32, device)
    starts, tokens, columns, _ = tables.programs.cpu().T.tolist()
    behind = [n // 128 - c for n, c in zip(tokens, columns, strict=True)]
    assert behind == sorted(behind, reverse=True)
    assert sorted(zip(starts, columns, strict=True)) == [
        *((5, c) for c in range(3)),
        *((305, c) for c in range(6)),
    ]


def test_kernels_and_torch_lay_entries_out_alike(device, monkeypatch):
    """The two forms behind `PackedStatistics` are interchangeable."""
    packed = Packed(11, (150, 300, 9))
    q, k, v = tensors(packed, 16, device)
    probes, lse_probes = bank(64, 16, device)
    _, lse = PackedAttention(packed, device)(q, k, v, 0.25)
    found = []
    for kernels in (True, False):
        monkeypatch.setattr(
            "sift_index.kernels.packed_statistics.takes_kernels", lambda k, on=kernels: on
        )
        made = PackedStatistics(packed, 32, 2, frequencies(8, device))
        found.append((made.probe(probes, lse_probes, k, 1, 0.25), made.local(q, k, lse, 64, 0.25)))
    for ours, theirs in zip(*found, strict=True):
        assert ours is not None and theirs is not None
        close(ours, theirs, 1e-5)
    assert found[0][1] is not None and found[0][1].shape == (HEADS, 8)  # one document of 3 tiles
    none = PackedStatistics(packed, 32, 3, frequencies(8, device))
    assert none.local(q, k, lse, 64, 0.25) is None
