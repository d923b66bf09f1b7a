"""Planning is a pure function of the corpus and the configuration."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_index.formats.identity import document_key
from sift_index.pipelines.cataloguing import catalogue_of
from sift_index.pipelines.corpus import Location
from sift_index.pipelines.documents import Piece, ScannedDocument
from sift_index.pipelines.planner import Unit, UnitPlan, cut_units, unit_id
from sift_index.pipelines.scanned import scanned_batch
from tests.pipelines.builds import catalogue_of_pieces

DIGEST = "ab" * 16
OTHER_DIGEST = "cd" * 16


def piece(number: int, tokens: int, file: str = "a.txt", part: int = 0) -> Piece:
    return Piece(document_key([number]), tokens, Location(file, number), part)


def plan(pieces: list[Piece], budget: int) -> UnitPlan:
    return cut_units(catalogue_of_pieces(pieces), budget, DIGEST)


LENGTHS = st.lists(st.integers(1, 300), max_size=60)


@given(LENGTHS, st.integers(1, 500), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_units_hold_every_piece_once_in_any_order_of_arrival(lengths, budget, order) -> None:
    pieces = [piece(number, tokens) for number, tokens in enumerate(lengths)]
    units = plan(pieces, budget)
    shuffled = order.sample(pieces, len(pieces))
    assert list(plan(shuffled, budget)) == list(units)
    assert units.tokens == sum(lengths) == sum(unit.tokens for unit in units)
    assert [units[i] for i in range(len(units))] == list(units) == units[:]
    planned = [item for unit in units for item in unit.pieces]
    assert sorted(planned, key=lambda item: item.location.position) == pieces
    assert [item.tokens for item in planned] == sorted(lengths)


@given(LENGTHS, st.integers(1, 500))
@settings(deadline=None)
def test_no_unit_exceeds_the_budget_unless_it_is_one_piece(lengths, budget) -> None:
    units = plan([piece(n, tokens) for n, tokens in enumerate(lengths)], budget)
    assert all(unit.tokens <= budget or len(unit.pieces) == 1 for unit in units)
    # Greedy: the next piece did not fit.
    for unit, following in zip(units, units[1:], strict=False):
        assert unit.tokens + following.pieces[0].tokens > budget


def test_a_piece_over_the_budget_is_a_unit_of_its_own() -> None:
    units = plan([piece(0, 5), piece(1, 500), piece(2, 501)], 100)
    assert [[item.tokens for item in unit.pieces] for unit in units] == [[5], [500], [501]]


def test_a_budget_may_be_any_number() -> None:
    assert len(plan([piece(number, 10) for number in range(5)], 10**30)) == 1


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
    assert (*first.pieces, *second.pieces) == pieces and first.pieces and second.pieces
    assert [half.id for half in (first, second)] == [
        unit_id(pieces[:2], DIGEST),
        unit_id(pieces[2:], DIGEST),
    ]


def test_pieces_of_one_length_lie_in_the_order_of_their_keys() -> None:
    for tokens in (7, 70_000):  # in 16 bits and in 32
        (unit,) = plan([piece(number, tokens) for number in range(50)], 50 * tokens)
        keys = [item.key for item in unit.pieces]
        assert keys == sorted(keys)


def test_a_unit_has_the_places_and_numbers_of_its_pieces() -> None:
    pieces = tuple(piece(key, 10, "long.txt", part) for part, key in enumerate((4, 5, 6)))
    pieces = tuple(replace(item, location=Location("long.txt", 0)) for item in pieces)
    other = piece(9, 3, "caf\udce9.jsonl")
    catalogue = catalogue_of(
        [scanned_batch([ScannedDocument("o", (other,)), ScannedDocument("l", pieces)])]
    )
    (unit,) = cut_units(catalogue, 100, DIGEST)
    assert set(unit.pieces) == {other, *pieces}


def test_unwanted_keys_are_in_no_unit() -> None:
    catalogue = catalogue_of_pieces([piece(number, 10) for number in range(9)])
    wanted = np.arange(9) % 3 == 1
    keys = {key.tobytes() for key in catalogue.distinct_keys[wanted]}
    units = cut_units(catalogue, 15, DIGEST, wanted)
    assert {item.key for unit in units for item in unit.pieces} == keys
    assert (len(units), units.keys, units.tokens) == (3, 3, 30)


def test_an_empty_plan_has_no_unit() -> None:
    units = plan([], 100)
    assert (len(units), list(units), units.tokens, units.keys) == (0, [], 0, 0)
    with pytest.raises(IndexError):
        units[0]
