"""Where tokens and entries of packed documents lie."""

import numpy as np
import pytest
import torch

from sift_index.formats import bits as stored
from sift_index.kernels.bits import pack, unpack
from sift_index.kernels.packed import Packed, Sections


def test_documents_follow_the_prefix_and_count_from_its_end():
    packed = Packed(3, (2, 4, 1))
    assert packed.starts == (3, 5, 9, 10)
    assert packed.total == 10
    assert packed.rows == [slice(3, 5), slice(5, 9), slice(9, 10)]
    assert packed.positions().tolist() == [0, 1, 2, 3, 4, 3, 4, 5, 6, 3]


def test_sections_begin_at_whole_bytes_and_come_back():
    sections = Sections((3, 8, 9, 0, 1))
    assert sections.starts == (0, 8, 16, 32, 32, 40)
    parts = [torch.arange(2 * count).reshape(2, count) + 1 for count in sections.counts]
    joined = sections.join(parts)
    assert joined.shape == (2, sections.total)
    assert joined.count_nonzero() == sum(part.numel() for part in parts)
    for part, found in zip(parts, sections.split(joined), strict=True):
        assert torch.equal(part, found)


def test_pages_and_triangles():
    packed = Packed(11, (1, 128, 129, 300))
    assert packed.pages(32).counts == (1, 4, 5, 10)
    assert packed.triangles(0).counts == (1, 1, 3, 6)
    assert packed.triangles(2).counts == (0, 0, 0, 6)


@pytest.mark.parametrize("levels", [1, 2])
def test_bits_are_packed_as_the_format_stores_them(levels):
    torch.manual_seed(levels)
    values = torch.randint(0, 2**levels, (3, 5, 48), dtype=torch.uint8)
    packed = pack(values, levels)
    assert np.array_equal(packed.numpy(), stored.pack(values.numpy(), levels))
    assert torch.equal(unpack(packed, 48, levels), values)
