"""Arrays of lists: values one behind another, and offsets [n + 1] where each list begins."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sift_index.formats.keyorder import Keys

Offsets = NDArray[np.int64]


def offsets_of(lengths: NDArray[Any]) -> Offsets:
    """Return where lists of these lengths begin, and the end: int64 [n + 1]."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))


def owners(offsets: Offsets) -> NDArray[np.int64]:
    """Return for each value the number of its list."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def values_of(offsets: Offsets, lists: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places of the values of some lists, in the order of these lists."""
    starts, lengths = offsets[lists], np.diff(offsets)[lists]
    begins = offsets_of(lengths)
    return np.repeat(starts - begins[:-1], lengths) + np.arange(begins[-1])


def all_of_each(values: NDArray[np.bool_], offsets: Offsets) -> NDArray[np.bool_]:
    """Say for each list whether all of its values are true; an empty one is."""
    complete = np.ones(len(offsets) - 1, bool)
    complete[owners(offsets)[~values]] = False
    return complete


def same_keys(
    keys: Keys, offsets: Offsets, other_keys: Keys, other_offsets: Offsets
) -> NDArray[np.bool_]:
    """Say of n lists of keys [.., 16] and n others which are equal, bool [n]."""
    same: NDArray[np.bool_] = np.diff(offsets) == np.diff(other_offsets)
    lists = np.flatnonzero(same)
    mine, others = values_of(offsets, lists), values_of(other_offsets, lists)
    equal = (keys[mine] == other_keys[others]).all(axis=1)
    same[lists] = all_of_each(equal, offsets_of(np.diff(offsets)[lists]))
    return same
