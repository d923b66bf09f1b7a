from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sift_index.formats import identity
from sift_index.formats.errors import UsageError
from sift_index.formats.identity import ANCHOR_TOKENS, anchor, document_key

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=40)


@given(ids=IDS)
def test_key_is_the_hash_of_little_endian_words(ids: list[int]) -> None:
    words = struct.pack(f"<{len(ids)}I", *ids)
    assert document_key(ids) == blake2b(words, digest_size=16).digest()
    assert document_key(np.array(ids, np.int64)) == document_key(tuple(ids)) == document_key(ids)


def test_known_values_never_change() -> None:
    ids = list(range(1, 21))
    assert document_key(ids).hex() == "0fe23e3c7a333d4fba0ba69ffbd0d37c"
    assert anchor(ids) == 192316033905740225
    assert document_key([]).hex() == "cae66941d9efbd404e4d88758ea67670"


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.uint32, np.int64, np.uint64, ">i4"])
def test_every_integer_array_hashes_alike(dtype: Any) -> None:
    ids = list(range(5, 45))
    assert document_key(np.array(ids, dtype)) == document_key(ids)
    assert document_key(np.array(ids * 2, dtype)[::2]) == document_key((ids * 2)[::2])
    assert anchor(np.array(ids, dtype)) == anchor(ids)


def test_anchor_reads_the_first_sixteen_ids_only() -> None:
    ids = list(range(ANCHOR_TOKENS))
    assert anchor(ids) == anchor([*ids, 7, 8]) != anchor([*ids[:-1], 99])


def test_a_short_document_has_no_anchor() -> None:
    assert anchor(list(range(ANCHOR_TOKENS - 1))) is None


def test_an_anchor_is_never_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    class Zero:
        def digest(self) -> bytes:
            return bytes(8)

    monkeypatch.setattr(identity, "blake2b", lambda *_, **__: Zero())
    assert anchor([1] * ANCHOR_TOKENS) == 1


@pytest.mark.parametrize(
    "ids",
    [
        [-1],
        [2**32],
        [1.5],
        ["a"],
        np.array([-1]),
        np.array([2**32]),
        np.array([1.0]),
        np.array([True]),
        np.zeros((2, 2), np.int64),
    ],
)
def test_what_is_no_token_id_is_refused(ids: Any) -> None:
    with pytest.raises(UsageError, match="token ids"):
        document_key(ids)
