"""Document ids with keys as arrays against the dictionaries they stand for."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_index.formats.documentmap import DocumentMap
from sift_index.formats.errors import UsageError

KEYS = st.integers(0, 9).map(lambda n: bytes([n]) * 16)
DOCUMENTS = st.dictionaries(st.text("aé😀z", max_size=3), st.lists(KEYS, max_size=3), max_size=8)


def plain(documents: DocumentMap) -> list[tuple[str, list[bytes]]]:
    bounds = documents.offsets.tolist()
    keys = [key.tobytes() for key in documents.keys]
    ids = documents.ids.to_pylist()
    return [(name, keys[bounds[i] : bounds[i + 1]]) for i, name in enumerate(ids)]


@given(DOCUMENTS, DOCUMENTS)
@settings(deadline=None)
def test_newer_documents_lie_over_earlier_ones(earlier, newer) -> None:
    found = DocumentMap.of(newer).over(DocumentMap.of(earlier))
    expected = {**earlier, **newer}
    assert plain(found) == [(name, expected[name]) for name in sorted(expected, key=str.encode)]


@given(DOCUMENTS, st.sets(st.text("aé😀z", max_size=3), max_size=5))
@settings(deadline=None)
def test_documents_are_left_out_by_id(documents, gone) -> None:
    found = DocumentMap.of(documents).without(pa.array(sorted(gone), pa.large_string()))
    assert plain(found) == [item for item in documents.items() if item[0] not in gone]


@given(DOCUMENTS, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_chosen_documents_keep_their_order(documents, chance) -> None:
    chosen = np.array([chance.random() < 0.5 for _ in documents], bool)
    items = zip(documents.items(), chosen, strict=True)
    assert plain(DocumentMap.of(documents).where(chosen)) == [item for item, kept in items if kept]


def test_ids_and_keys_that_are_none_are_refused() -> None:
    with pytest.raises(UsageError, match=r"document id: expected valid text, found '\\udce9'"):
        DocumentMap.of({"\udce9": []})
    with pytest.raises(UsageError, match="document key: expected 16 bytes, found 15"):
        DocumentMap.of({"a": [bytes(16)], "b": [bytes(15)]})
