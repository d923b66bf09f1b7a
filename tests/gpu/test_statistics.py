"""Extraction on a Hopper GPU: kernels against torch on the same device, in every type."""

import pytest
import torch

from sift_index.kernels import triton_local_statistics, triton_probe_statistics
from sift_index.kernels.packed import Packed
from sift_index.kernels.packed_attention import PackedAttention, _one_by_one
from sift_index.selection.agreement import level_agreement, mask_agreement
from sift_index.selection.extractor import DocumentScores, Extractor
from sift_index.selection.policy import ProbePolicy
from tests.kernels.packs import (
    bank,
    frequencies,
    tensors,
    true_local_scores,
    true_probe_scores,
)
from tests.plans import loaded, tiny, tokens
from tests.selection.observed import between_values, write_probes

CUDA = torch.device("cuda")
# Relative. Turned keys are rounded to float16 where the model's own have 16 bits.
PROBE = {torch.float32: 1e-4, torch.float16: 1e-3, torch.bfloat16: 1e-3}
LOCAL = {torch.float32: 1e-4, torch.float16: 1e-4, torch.bfloat16: 1e-4}
PACKED = Packed(45, (1, 130, 2500, 640, 96, 1157, 3000))


def check(name: str, found: torch.Tensor, truth: torch.Tensor, relative: float) -> None:
    """Close, and the same masks at two thresholds but for ties, which are counted."""
    error = float(((found - truth).abs() / truth.clamp(min=1e-20))[truth > 0].max())
    thresholds = between_values(truth[truth > 0].cpu().numpy(), 0.5, 0.9)
    agreement = level_agreement(truth, found, thresholds, relative)
    print(f"{name}: relative error {error:.2e}, {agreement}")
    assert error <= relative
    assert agreement.errors == 0 and agreement.share < 0.01


@pytest.mark.parametrize("dtype", PROBE, ids=str)
@pytest.mark.parametrize(("dim", "window", "page"), [(128, 1, 32), (64, 1, 32), (128, 64, 8)])
def test_probe_scores(dtype, dim, window, page):
    q, lse = bank(1088, dim, CUDA, dtype)
    _, k, _ = tensors(PACKED, dim, CUDA, dtype, size=1.0)
    inverse, scale = frequencies(dim // 2, CUDA), dim**-0.5
    tables = triton_probe_statistics.probe_tables(PACKED, page, inverse)
    found = triton_probe_statistics.probe_scores(q, lse, k, tables, window, scale)
    truth = true_probe_scores(q, lse, k, PACKED, inverse, window, page, scale)
    check(f"probe {dtype} d{dim} window {window} page {page}", found, truth, PROBE[dtype])
    again = triton_probe_statistics.probe_scores(q, lse, k, tables, window, scale)
    assert torch.equal(found, again)


@pytest.mark.parametrize("dtype", LOCAL, ids=str)
@pytest.mark.parametrize(("dim", "window", "page"), [(128, 64, 32), (64, 64, 32), (128, 128, 16)])
def test_local_scores(dtype, dim, window, page):
    q, k, v = tensors(PACKED, dim, CUDA, dtype)
    scale = dim**-0.5
    _, lse = PackedAttention(PACKED, CUDA)(q, k, v, scale)
    tables = triton_local_statistics.local_tables(PACKED, 8, page, CUDA)
    found = triton_local_statistics.local_scores(q, k, lse, tables, window, scale)
    truth = true_local_scores(q, k, lse, PACKED, 8, window, page, scale)
    check(f"local {dtype} d{dim} window {window} page {page}", found, truth, LOCAL[dtype])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dim", [64, 128])
def test_attention_of_packed_documents(dtype, dim):
    q, k, v = tensors(PACKED, dim, CUDA, dtype, size=1.0)
    out, lse = PackedAttention(PACKED, CUDA)(q, k, v, dim**-0.5)
    exact, its_lse = _one_by_one(q.float(), k.float(), v.float(), PACKED, dim**-0.5)
    assert float((out.float() - exact).norm() / exact.norm()) < 8e-3
    torch.testing.assert_close(lse, its_lse, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_model_gives_the_masks_of_torch(dtype, tmp_path, monkeypatch):
    """Both on the GPU: what is compared are the statistics, not how the device multiplies."""
    policy = ProbePolicy(
        window=1, probe_source=write_probes(tmp_path / "p"), probe_tokens=200, la_dense_tiles=2
    )
    model = loaded(tiny("llama").to(CUDA, dtype))
    documents = [tokens(n, seed=n) for n in (40, 700, 1300)]
    found: list[list[DocumentScores]] = []
    for kernels in (True, False):
        monkeypatch.setattr(
            "sift_index.kernels.packed_statistics.takes_kernels", lambda k, on=kernels: on
        )
        extractor = Extractor(model, policy, tokens(11, seed=5))
        found.append([extractor.scores(ids) for ids in documents])
    agreement = mask_agreement(found[1], found[0], policy, 2e-3)
    print(f"model {dtype}: {agreement}")
    assert agreement.errors == 0 and agreement.share < 0.02


def test_masks_leave_a_batch_as_they_leave_one_document(tmp_path):
    policy = ProbePolicy(probe_source=write_probes(tmp_path / "p"), probe_tokens=200)
    extractor = Extractor(loaded(tiny("llama").to(CUDA)), policy, tokens(11, seed=5))
    documents = [tokens(n, seed=n) for n in (40, 700, 1300)]
    together, again = (extractor.launch(documents).result() for _ in range(2))
    assert together == again
    for ids, row in zip(documents, together, strict=True):
        scores = extractor.scores(ids)
        truth = torch.stack([layer.ca for layer in scores.layers])
        bits = torch.from_numpy(row.ca.unpacked()).float()
        assert level_agreement(truth, bits, policy.ca_levels, 1e-4).errors == 0
