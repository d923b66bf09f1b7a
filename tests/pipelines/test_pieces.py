"""Pieces as arrays against the tuple that they stand for."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_index.formats.identity import document_key
from sift_index.pipelines.corpus import Location
from sift_index.pipelines.documents import Piece
from sift_index.pipelines.pieces import PieceColumns
from sift_index.pipelines.planner import Unit, cut_units, unit_id
from tests.pipelines.builds import catalogue_of_pieces

DIGEST = "ab" * 16


def both(count: int) -> tuple[PieceColumns, tuple[Piece, ...]]:
    """Pieces of files of four as arrays and as a tuple, in the order of a plan."""
    plain = [
        Piece(document_key([n]), 10 + n, Location(f"{n // 4}.jsonl", n), 0) for n in range(count)
    ]
    (unit,) = cut_units(catalogue_of_pieces(plain), 1 << 30, DIGEST)
    assert isinstance(unit.pieces, PieceColumns)
    return unit.pieces, tuple(plain)


@given(st.integers(-12, 12), st.integers(-12, 12), st.sampled_from([1, 2, 3, -1]))
@settings(deadline=None)
def test_slices_and_places_are_those_of_the_tuple(start, stop, step) -> None:
    columns, plain = both(9)
    assert columns == plain and tuple(columns) == plain and len(columns) == 9
    assert tuple(columns[start:stop:step]) == plain[start:stop:step]
    if -9 <= start < 9:
        assert columns[start] == plain[start]
    else:
        with pytest.raises(IndexError):
            columns[start]


def test_equal_pieces_are_equal_and_others_are_not() -> None:
    columns, plain = both(5)
    assert columns == both(5)[0] and hash(columns) == hash(plain)
    assert columns != plain[:4] and columns != both(6)[0] and columns != [*plain]
    assert plain[3] in columns and both(6)[1][5] not in columns


def test_a_unit_is_the_same_from_arrays_and_from_pieces() -> None:
    columns, plain = both(50)
    one, other = Unit(unit_id(columns, DIGEST), columns), Unit(unit_id(plain, DIGEST), plain)
    assert one == other and one.tokens == other.tokens
    assert [
        half == twin for half, twin in zip(one.halves(DIGEST), other.halves(DIGEST), strict=True)
    ]
    assert [half.id for half in one.halves(DIGEST)] == [half.id for half in other.halves(DIGEST)]


def test_keys_that_end_in_zeros_are_sorted_by_all_their_bytes() -> None:
    keys = [bytes([n]) + bytes(15) for n in (3, 1, 2)] + [bytes(16), bytes(15) + b"\1"]
    plain = [Piece(key, 10, Location(key.hex(), 0), 0) for key in keys]
    (unit,) = cut_units(catalogue_of_pieces(plain), 1 << 30, DIGEST)
    assert len(unit.pieces) == 5 and unit.id == unit_id(plain, DIGEST)


def test_pieces_travel_whole() -> None:
    columns, plain = both(2000)
    data = pickle.dumps(Unit("u", columns[500:1000]))
    assert pickle.loads(data).pieces == plain[500:1000]
    assert len(data) < 500 * 60 + len(columns.files) * 20
