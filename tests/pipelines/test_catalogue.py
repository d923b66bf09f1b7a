"""The catalogue as arrays against the same rules applied document by document."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_index.formats.failures import FailedDocument
from sift_index.formats.identity import document_key
from sift_index.pipelines.catalogue import Catalogue
from sift_index.pipelines.cataloguing import catalogue_of
from sift_index.pipelines.corpus import Location
from sift_index.pipelines.documents import (
    OverlongDocument,
    Piece,
    Scanned,
    ScannedDocument,
    SkippedDocument,
)
from sift_index.pipelines.planner import cut_units, unit_id
from sift_index.pipelines.scanned import scanned_batch

DIGEST = "ab" * 16


def scanned(name: str, *keys: int, position: int = 0) -> ScannedDocument:
    place = Location(f"{name}.txt", position)
    pieces = (Piece(document_key([key]), 10 + key, place, n) for n, key in enumerate(keys))
    return ScannedDocument(name, tuple(pieces))


def catalogue(*found: Scanned) -> Catalogue:
    return catalogue_of([scanned_batch(found)])


def documents(found: Catalogue) -> dict[str, tuple[bytes, ...]]:
    return {name: found.document_keys(i) for i, name in enumerate(found.ids.to_pylist())}


def duplicates(found: Catalogue) -> set[str]:
    return {found.ids[int(i)].as_py() for i in np.flatnonzero(found.distinct.duplicates)}


def summary_one_by_one(found: Sequence[ScannedDocument]) -> dict[str, Any]:
    """What a catalogue must say, by dictionaries."""
    kept: dict[str, ScannedDocument] = {}
    pieces: dict[bytes, Piece] = {}
    clashes, copies, repeats = [], set(), 0
    for item in found:
        known = kept.get(item.id)
        if known is not None:
            repeats += known.keys == item.keys
            clashes += [] if known.keys == item.keys else [(item.id, item.location)]
            continue
        if all(piece.key in pieces for piece in item.pieces):
            copies.add(item.id)
        kept[item.id] = item
        for piece in item.pieces:
            pieces.setdefault(piece.key, piece)
    return {
        "documents": {name: item.keys for name, item in kept.items()},
        "pieces": sorted(pieces.values(), key=lambda piece: piece.key),
        "clashes": clashes,
        "duplicates": copies,
        "repeats": repeats,
        "split": sum(len(item.pieces) > 1 for item in kept.values()),
    }


DOCUMENTS = st.lists(
    st.tuples(st.integers(0, 6), st.lists(st.integers(0, 5), min_size=1, max_size=3)), max_size=30
)


@given(DOCUMENTS, st.integers(1, 8))
@settings(deadline=None)
def test_arrays_say_what_dictionaries_say(wanted, size) -> None:
    items = [scanned(f"d{name}", *keys, position=n) for n, (name, keys) in enumerate(wanted)]
    batches = [items[at : at + size] for at in range(0, len(items), size)]
    found = catalogue_of(map(scanned_batch, batches))
    assert {
        "documents": documents(found),
        "pieces": list(found.pieces(found.distinct.rows)),
        "clashes": [(clash.id, clash.location) for clash in found.clashes],
        "duplicates": duplicates(found),
        "repeats": found.repeats,
        "split": found.split,
    } == summary_one_by_one(items)
    assert found.read == len(items)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_order_of_duplicates_changes_no_unit(order) -> None:
    given = [scanned("one", 7), scanned("two", 7), scanned("three", 8)]
    found = catalogue(*(given[i] for i in order))
    (unit,) = cut_units(found, 100, DIGEST)
    assert unit.id == unit_id([*given[0].pieces, *given[2].pieces], DIGEST)
    assert len(duplicates(found)) == 1 and duplicates(found) < {"one", "two"}


def test_one_id_with_one_text_twice_is_a_repeat() -> None:
    found = catalogue(scanned("a", 1), scanned("a", 1))
    assert (found.read, found.repeats, found.clashes) == (2, 1, ())


def test_one_id_with_two_texts_keeps_the_first() -> None:
    found = catalogue(scanned("a", 1), scanned("a", 2, position=7))
    (clash,) = found.clashes
    assert (clash.id, clash.location) == ("a", Location("a.txt", 7))
    assert documents(found) == {"a": (document_key([1]),)}
    assert [key.tobytes() for key in found.distinct_keys] == [document_key([1])]


def test_a_split_document_that_shares_a_piece_is_no_duplicate() -> None:
    found = catalogue(scanned("a", 1, 2), scanned("b", 1, 3), scanned("c", 2, 1))
    assert found.split == 3 and len(found.distinct) == 3
    assert duplicates(found) == {"c"}
    assert documents(found)["c"] == (document_key([2]), document_key([1]))


def test_documents_left_out_are_counted_and_named() -> None:
    failed = FailedDocument("x.jsonl:3", "malformed")
    long = OverlongDocument("y.txt", "too many tokens", "y")
    skipped = [SkippedDocument("e", "empty"), SkippedDocument("f", "empty")]
    found = catalogue_of(
        [scanned_batch([skipped[0], failed]), scanned_batch([long, skipped[1], scanned("a", 1)])]
    )
    assert (found.read, len(found), found.skipped) == (5, 1, {"empty": 2})
    assert found.failed == (failed, FailedDocument("y.txt", "too many tokens"))
    assert (found.unread, found.kept_ids) == (1, frozenset({"y"}))


def test_a_document_is_complete_with_all_of_its_keys() -> None:
    found = catalogue(scanned("a", 1, 2), scanned("b", 2), scanned("c", 3))
    have = np.array([key.tobytes() != document_key([1]) for key in found.distinct_keys])
    assert found.complete(have).tolist() == [False, True, True]
    assert found.complete(np.ones(3, bool)).all() and not found.complete(np.zeros(3, bool)).any()


def test_files_that_go_on_in_the_next_batch_are_the_same() -> None:
    names = ["a", "a", "caf\udce9", "b", "b"]
    items = [
        ScannedDocument(f"{n}", (Piece(document_key([n]), 1, Location(name, n), 0),))
        for n, name in enumerate(names)
    ]
    found = catalogue_of(
        [
            scanned_batch(items[:1]),
            scanned_batch(items[1:4]),
            scanned_batch([]),
            scanned_batch(items[4:]),
        ]
    )
    assert found.places.at(np.arange(5)) == [item.location for item in items]
    assert len(found.places.files) == 3
