"""What a document *is*: a hash of its token ids, so that no text and no name can go stale.

The key finds a declared or cut-out segment; the anchor (first 16 ids) finds an indexed document
at any offset of a raw prompt. Both hash little-endian uint32, whatever the machine.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sift_index.formats.problems import misused

ANCHOR_TOKENS = 16
KEY_BYTES = 16
_MAX_ID = 2**32 - 1

TokenIds = Sequence[int] | NDArray[np.integer[Any]]


def document_key(ids: TokenIds) -> bytes:
    """Return the 16-byte key of a document: BLAKE2b-128 of its ids as little-endian uint32.

    `ids` is one-dimensional. Raises UsageError for ids that are no integers of 0..2**32-1.
    """
    return key_of(token_bytes(ids))


def key_of(data: bytes) -> bytes:
    """Return the key of a document by its ids as `token_bytes` gives them."""
    return blake2b(data, digest_size=KEY_BYTES).digest()


def anchor(ids: TokenIds) -> int | None:
    """Return the uint64 hash of the first 16 ids, or None when there are fewer.

    BLAKE2b-64 read as little-endian; 0 becomes 1, because tables write 0 for "no anchor".
    Raises UsageError for ids that are no integers of 0..2**32-1.
    """
    if len(ids) < ANCHOR_TOKENS:
        return None
    digest = blake2b(token_bytes(ids[:ANCHOR_TOKENS]), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


def token_bytes(ids: TokenIds) -> bytes:
    """Return ids as little-endian uint32, checked as `document_key` checks them."""
    # array() checks type and range of a list in one C pass, twice as fast as numpy does.
    if isinstance(ids, (list, tuple)):
        return _from_list(ids)
    values = np.asarray(ids)
    if not values.size:
        return b""
    if values.dtype.kind not in "iu" or values.ndim != 1:
        raise _bad(f"{values.dtype} {list(values.shape)}")
    if values.min() < 0 or values.max() > _MAX_ID:
        raise _bad(f"values from {values.min()} to {values.max()}")
    return values.astype("<u4", copy=False).tobytes()


def _from_list(ids: Sequence[int]) -> bytes:
    try:
        values = array("I", ids)
    except (OverflowError, TypeError, ValueError) as error:
        raise _bad(str(error)) from error
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _bad(found: str) -> Exception:
    advice = "pass the tokenizer's ids of one document, without padding"
    return misused("token ids", "one dimension of integers 0..2**32-1", found, advice)
