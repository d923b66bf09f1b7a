from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sift_index.formats.bits import (
    pack,
    packed_bytes,
    padding_is_zero,
    triangle,
    triangle_index,
    unpack,
)
from sift_index.formats.errors import UsageError


@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 70)),
    levels=st.sampled_from([1, 2]),
)
def test_unpack_inverts_pack(seed: int, shape: tuple[int, int, int], levels: int) -> None:
    values = np.random.default_rng(seed).integers(0, 1 << levels, shape, dtype=np.uint8)
    packed = pack(values, levels)
    assert packed.dtype == np.uint8
    assert packed.shape == (*shape[:2], packed_bytes(shape[2], levels))
    assert np.array_equal(unpack(packed, shape[2], levels), values)
    if shape[2]:
        assert padding_is_zero(packed, shape[2], levels)


def test_one_level_is_most_significant_bit_first() -> None:
    values = np.array([1, 0, 1, 1, 0, 0, 0, 1, 1, 0, 1], np.uint8)
    assert pack(values, 1).tobytes() == bytes([0b10110001, 0b10100000])


def test_two_levels_put_the_high_bit_first() -> None:
    assert pack(np.array([3, 0, 2, 1, 1], np.uint8), 2).tobytes() == bytes([0b11001001, 0b01000000])


def test_bool_masks_pack_like_ones_and_zeros() -> None:
    values = np.array([[True, False, True]])
    assert np.array_equal(pack(values, 1), pack(values.astype(np.uint8), 1))


def test_each_row_starts_on_a_byte() -> None:
    assert pack(np.ones((2, 2, 3), np.uint8), 1).tobytes() == bytes([0b11100000] * 4)


def test_triangle_counts_row_major_places() -> None:
    places = [triangle_index(row, column) for row in range(5) for column in range(row + 1)]
    assert places == list(range(triangle(5))) == list(range(15))


@pytest.mark.parametrize(("row", "column"), [(0, 1), (3, 4), (2, -1)])
def test_a_tile_outside_the_triangle_is_refused(row: int, column: int) -> None:
    with pytest.raises(UsageError, match="column <= row"):
        triangle_index(row, column)


@pytest.mark.parametrize("levels", [0, 3, -1])
def test_other_levels_are_refused(levels: int) -> None:
    with pytest.raises(UsageError, match="levels"):
        pack(np.zeros(3, np.uint8), levels)


@pytest.mark.parametrize(("value", "levels"), [(2, 1), (255, 1), (4, 2)])
def test_a_value_too_large_for_its_bits_is_refused(value: int, levels: int) -> None:
    with pytest.raises(UsageError, match="below"):
        pack(np.array([0, value], np.uint8), levels)


def test_another_dtype_is_refused() -> None:
    with pytest.raises(UsageError, match="uint8"):
        pack(np.zeros(3, np.int64), 1)


@pytest.mark.parametrize("entries", [8, 17])
def test_unpack_wants_exactly_the_bytes_of_its_entries(entries: int) -> None:
    with pytest.raises(UsageError, match=r"uint8 \[\.\.\., "):
        unpack(np.zeros((1, 2), np.uint8), entries, 1)


def test_set_padding_bits_are_noticed() -> None:
    assert padding_is_zero(np.array([[0b11100000]], np.uint8), 3, 1)
    assert not padding_is_zero(np.array([[0b11110000]], np.uint8), 3, 1)
    assert not padding_is_zero(np.array([[0b11110001]], np.uint8), 3, 2)
