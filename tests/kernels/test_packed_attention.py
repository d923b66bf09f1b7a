"""Attention of packed documents is that of each alone behind the prefix, whatever computes it."""

import pytest
import torch

from sift_index.kernels.dense import causal_attention
from sift_index.kernels.packed import Packed
from sift_index.kernels.packed_attention import PackedAttention, _Entries
from sift_index.kernels.varlen import attend_plain
from tests.kernels.packs import tensors

SCALE = 0.2
CPU = torch.device("cpu")
CASES = [(11, (1, 130, 57)), (0, (40, 1, 200)), (7, (90,)), (0, (33,)), (140, (3, 5, 2, 9))]


def alone(q, k, v, packed: Packed, number: int):
    """Run one document behind the prefix and return its rows of output and log-sum-exp."""
    rows = packed.rows[number]
    taken = torch.cat((torch.arange(packed.prefix), torch.arange(rows.start, rows.stop)))
    out, lse = causal_attention(q[:, taken], k[:, taken], v[:, taken], SCALE)
    return out[:, packed.prefix :], lse[:, packed.prefix :]


def one_by_one(q, k, v, packed: Packed):
    return PackedAttention(packed, CPU)(q, k, v, SCALE)


def by_a_library(q, k, v, packed: Packed):
    return _Entries(packed, CPU).attend(attend_plain, q, k, v, SCALE)


@pytest.mark.parametrize("attend", [one_by_one, by_a_library])
@pytest.mark.parametrize(("prefix", "lengths"), CASES)
def test_each_document_sees_the_prefix_and_itself(prefix, lengths, attend):
    packed = Packed(prefix, lengths)
    q, k, v = tensors(packed, 16, CPU)
    out, lse = attend(q, k, v, packed)
    for number, rows in enumerate(packed.rows):
        expected, its_lse = alone(q, k, v, packed, number)
        torch.testing.assert_close(out[:, rows], expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(lse[:, rows], its_lse, atol=1e-5, rtol=1e-5)
    if not prefix:
        return
    ahead = slice(0, prefix)
    expected, its_lse = causal_attention(q[:, ahead], k[:, ahead], v[:, ahead], SCALE)
    torch.testing.assert_close(out[:, :prefix], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse[:, :prefix], its_lse, atol=1e-5, rtol=1e-5)


def test_the_prefix_is_copied_in_front_of_all_documents_but_the_first():
    packed = Packed(2, (1, 2))
    entries = _Entries(packed, CPU)
    assert entries._sources.tolist() == [0, 1, 2, 0, 1, 3, 4]
    assert entries._cu_q.tolist() == [0, 3, 5]
    assert entries._k_start.tolist() == [0, 3]
    assert entries._k_used.tolist() == [3, 4]
