"""Planning is a pure function of the corpus and the configuration."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sift_index.formats.identity import document_key
from sift_index.pipelines.corpus import Location
from sift_index.pipelines.documents import Piece, ScannedDocument, SkippedDocument
from sift_index.pipelines.planner import Catalogue, Unit, cut_units, unit_id

DIGEST = "ab" * 16
OTHER_DIGEST = "cd" * 16


def piece(number: int, tokens: int, file: str = "a.txt", part: int = 0) -> Piece:
    return Piece(document_key([number]), tokens, Location(file, number), part)


def scanned(name: str, *keys: int) -> ScannedDocument:
    pieces = (piece(key, 10, f"{name}.txt", part) for part, key in enumerate(keys))
    return ScannedDocument(name, tuple(pieces))


def catalogue_of(*documents: ScannedDocument | SkippedDocument) -> Catalogue:
    catalogue = Catalogue()
    catalogue.add(documents)
    return catalogue


LENGTHS = st.lists(st.integers(1, 300), max_size=60)


@given(LENGTHS, st.integers(1, 500), st.randoms(use_true_random=False))
def test_units_hold_every_piece_once_in_any_order_of_arrival(lengths, budget, order) -> None:
    pieces = [piece(number, tokens) for number, tokens in enumerate(lengths)]
    units = cut_units(pieces, budget, DIGEST)
    shuffled = order.sample(pieces, len(pieces))
    assert cut_units(shuffled, budget, DIGEST) == units
    planned = [item for unit in units for item in unit.pieces]
    assert sorted(planned, key=lambda item: item.location.position) == pieces
    assert [item.tokens for item in planned] == sorted(lengths)


@given(LENGTHS, st.integers(1, 500))
def test_no_unit_exceeds_the_budget_unless_it_is_one_piece(lengths, budget) -> None:
    units = cut_units([piece(n, tokens) for n, tokens in enumerate(lengths)], budget, DIGEST)
    assert all(unit.tokens <= budget or len(unit.pieces) == 1 for unit in units)
    # Greedy: the next piece did not fit.
    for unit, following in zip(units, units[1:], strict=False):
        assert unit.tokens + following.pieces[0].tokens > budget


def test_a_piece_over_the_budget_is_a_unit_of_its_own() -> None:
    units = cut_units([piece(0, 5), piece(1, 500), piece(2, 501)], 100, DIGEST)
    assert [[item.tokens for item in unit.pieces] for unit in units] == [[5], [500], [501]]


def test_a_unit_is_named_by_its_keys_and_the_build_alone() -> None:
    pieces = [piece(number, 10) for number in range(5)]
    moved = [piece(number, 99, "elsewhere.jsonl", 3) for number in range(5)]
    random.Random(0).shuffle(moved)
    assert unit_id(pieces, DIGEST) == unit_id(moved, DIGEST)
    assert unit_id(pieces, DIGEST) != unit_id(pieces[1:], DIGEST)
    assert unit_id(pieces, DIGEST) != unit_id(pieces, OTHER_DIGEST)
    assert len(bytes.fromhex(unit_id(pieces, DIGEST))) == 16


def test_halves_of_a_unit_are_units_of_their_own() -> None:
    pieces = tuple(piece(number, 10 + number) for number in range(5))
    whole = Unit(unit_id(pieces, DIGEST), pieces)
    first, second = whole.halves(DIGEST)
    assert first.pieces + second.pieces == pieces and first.pieces and second.pieces
    assert [half.id for half in (first, second)] == [
        unit_id(pieces[:2], DIGEST),
        unit_id(pieces[2:], DIGEST),
    ]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_order_of_duplicates_changes_no_unit(order) -> None:
    documents = [scanned("one", 7), scanned("two", 7), scanned("three", 8)]
    catalogue = catalogue_of(*(documents[i] for i in order))
    units = cut_units(catalogue.pieces.values(), 100, DIGEST)
    assert [unit.id for unit in units] == [unit_id([piece(7, 10), piece(8, 10)], DIGEST)]
    assert len(catalogue.duplicate_ids) == 1 and catalogue.duplicate_ids < {"one", "two"}


def test_one_id_with_one_text_twice_is_a_repeat() -> None:
    catalogue = catalogue_of(scanned("a", 1), scanned("a", 1))
    assert (catalogue.read, catalogue.repeats, catalogue.clashes) == (2, 1, [])


def test_one_id_with_two_texts_keeps_the_first() -> None:
    second = scanned("a", 2)
    catalogue = catalogue_of(scanned("a", 1), second)
    assert catalogue.clashes == [second]
    assert catalogue.documents["a"].keys == (document_key([1]),)
    assert set(catalogue.pieces) == {document_key([1])}


def test_a_split_document_that_shares_a_piece_is_no_duplicate() -> None:
    catalogue = catalogue_of(scanned("a", 1, 2), scanned("b", 1, 3), scanned("c", 2, 1))
    assert catalogue.split == 3 and len(catalogue.pieces) == 3
    assert catalogue.duplicate_ids == {"c"}
    assert catalogue.documents["c"].keys == (document_key([2]), document_key([1]))
