"""Bit order of the masks, kept apart because every reader on every device must agree on it.

Bits run from the most significant down along the last axis. With two levels per entry the first
bit of the pair is the high one. Every (layer, head) row starts on a byte boundary, so that a GPU
decoder never shifts bits across rows; the bits after the last entry are zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sift_index.formats.problems import misused

Bytes = NDArray[np.uint8]
LEVELS = (1, 2)


def check_levels(levels: int) -> None:
    """Raise UsageError unless `levels` (bits per entry) is 1 or 2."""
    if levels not in LEVELS:
        raise misused("levels", "1 or 2 bits per entry", levels, "pass 1 for a plain on/off mask")


def packed_bytes(entries: int, levels: int) -> int:
    """Return the bytes of one packed row: ceil(entries * levels / 8)."""
    return (entries * levels + 7) >> 3


def pack(values: NDArray[Any], levels: int) -> Bytes:
    """Pack entries along the last axis, most significant bit first.

    Shapes: `values` uint8 or bool [..., n] with values below 2 ** levels, to uint8
    [..., packed_bytes(n, levels)]. With 2 levels a value counts the nested thresholds exceeded.
    Raises UsageError for another dtype or a value out of range.
    """
    check_levels(levels)
    if values.dtype not in (np.uint8, np.bool_) or values.ndim < 1:
        raise misused("values", "uint8 [..., n]", _kind(values), "cast the mask to uint8")
    values = values.view(np.uint8)
    if values.size and values.max() >> levels:
        raise misused("values", f"below {1 << levels}", values.max(), "use more levels or clip")
    return np.packbits(values if levels == 1 else _split(values), axis=-1)


def unpack(packed: Bytes, entries: int, levels: int) -> Bytes:
    """Invert `pack`: uint8 [..., packed_bytes(entries, levels)] to uint8 [..., entries].

    Raises UsageError when the last axis does not hold exactly that many bytes.
    """
    check_levels(levels)
    width = packed_bytes(entries, levels)
    if packed.dtype != np.uint8 or packed.ndim < 1 or packed.shape[-1] != width:
        raise misused("packed", f"uint8 [..., {width}]", _kind(packed), "check entries and levels")
    bits = np.unpackbits(packed, axis=-1, count=entries * levels)
    if levels == 1:
        return bits
    pairs = bits.reshape(*packed.shape[:-1], entries, 2)
    values: Bytes = np.bitwise_or(pairs[..., 0] << 1, pairs[..., 1], dtype=np.uint8)
    return values


def padding_is_zero(packed: Bytes, entries: int, levels: int) -> bool:
    """Say whether the bits after the last entry of every row are zero."""
    spare = packed.shape[-1] * 8 - entries * levels
    return spare == 0 or not (packed[..., -1] & ((1 << spare) - 1)).any()


def triangle(tiles: int) -> int:
    """Return the entries of a lower triangle with its diagonal, `tiles` rows high."""
    return tiles * (tiles + 1) // 2


def triangle_index(row: int, column: int) -> int:
    """Return the place of tile (row, column) in row-major order: (0,0), (1,0), (1,1), (2,0)...

    Raises UsageError unless 0 <= column <= row.
    """
    if not 0 <= column <= row:
        raise misused("tile", "0 <= column <= row", (row, column), "the mask is causal")
    return triangle(row) + column


def _split(values: Bytes) -> Bytes:
    """Turn two-bit values [..., n] into bits [..., 2 n], high bit first."""
    pairs = np.stack((values >> 1, values & 1), axis=-1)
    return pairs.reshape(*values.shape[:-1], 2 * values.shape[-1])


def _kind(array: NDArray[Any]) -> str:
    return f"{array.dtype} {list(array.shape)}"
