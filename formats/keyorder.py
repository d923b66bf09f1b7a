"""Order of 16-byte keys as arrays: the byte order, whatever the machine's integers look like.

The fixed-width byte type compares all 16 bytes, zero bytes included; only *taking a value out*
of such an array would drop trailing zeros, so nothing here does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint8]
KEY_DTYPE = "S16"


def as_items(keys: Keys) -> NDArray[Any]:
    """Return keys uint8 [n, 16] as one comparable item each, [n], a view where possible."""
    return np.ascontiguousarray(keys).view(KEY_DTYPE)[:, 0]


def sorted_keys(keys: Keys) -> Keys:
    """Return keys uint8 [n, 16] in rising order, each as often as it is there."""
    return keys[np.argsort(as_items(keys))]


def rising(keys: Keys) -> bool:
    """Say whether keys uint8 [n, 16] rise strictly: sorted, without duplicates."""
    order = np.ascontiguousarray(keys).view(">u8").astype(np.uint64)
    high, low = order[:, 0], order[:, 1]
    same = high[1:] == high[:-1]
    return bool(((high[1:] > high[:-1]) | (same & (low[1:] > low[:-1]))).all())


def find_positions(table: Keys, wanted: Keys) -> NDArray[np.int64]:
    """Return where each of `wanted` uint8 [m, 16] lies in sorted `table` [n, 16]; -1 if not."""
    if not len(table) or not len(wanted):
        return np.full(len(wanted), -1, np.int64)
    places = as_items(table).searchsorted(as_items(wanted)).astype(np.int64)
    inside = np.minimum(places, len(table) - 1)
    return np.where((table[inside] == wanted).all(axis=1), places, -1)


def stack_keys(keys: bytes) -> Keys:
    """Return joined keys as uint8 [n, 16], a view."""
    return np.frombuffer(keys, np.uint8).reshape(-1, 16)
