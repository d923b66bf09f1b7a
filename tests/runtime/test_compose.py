"""From segments to spans and glue, each with its reason."""

import numpy as np
import pytest
import torch

from sift_index.errors import UsageError
from sift_index.formats.identity import document_key
from sift_index.prompts import Segment
from sift_index.runtime.compose import Composition, split_ids
from tests.plans import layout_of, masks_of, tiny, tokens

LAYOUT = layout_of(tiny("llama"))
KNOWN = [tokens(40), tokens(130), tokens(1)]
HEAD = Segment(tokens(5, seed=3), glue=True)


def composition(longest: int = 1 << 20, documents=KNOWN, names=None) -> Composition:
    table = {document_key(ids): masks_of(ids, LAYOUT) for ids in documents}
    return Composition(table.get, longest, lambda name: (names or {}).get(name, ()))


def compose(*segments, **options) -> Composition:
    parts = composition(**options)
    for segment in segments:
        parts.add(segment)
    return parts


def reasons(parts: Composition) -> list[str]:
    return [outcome.reason for outcome in parts.outcomes]


def test_outcomes_cover_the_prompt_without_gaps():
    parts = compose(HEAD, KNOWN[0], [], tokens(7), KNOWN[1], Segment(KNOWN[0], glue=True))
    expected = ["declared_glue", "indexed", "empty", "not_indexed", "indexed", "declared_glue"]
    assert reasons(parts) == expected
    ends = [0, *(outcome.stop for outcome in parts.outcomes)]
    assert [outcome.start for outcome in parts.outcomes] == ends[:-1]
    assert ends[-1] == len(parts.ids) == 5 + 40 + 7 + 130 + 40
    spans = [(span.start, span.stop) for span in parts.spans]
    assert spans == [(5, 45), (52, 182)]
    assert parts.ids[52:182] == KNOWN[1]
    assert [o.key for o in parts.outcomes if o.kind == "span"] == [
        document_key(ids).hex() for ids in KNOWN[:2]
    ]


def test_a_span_at_position_0_is_glue_and_the_next_is_not():
    parts = compose(KNOWN[0], KNOWN[0], KNOWN[1])
    assert reasons(parts) == ["no_prefix", "indexed", "indexed"]


def test_an_empty_first_segment_is_no_prefix():
    assert reasons(compose([], KNOWN[0])) == ["empty", "no_prefix"]


def test_a_declared_document_with_other_tokens_has_changed():
    names = {"mill.md": (document_key(KNOWN[0]),)}
    parts = compose(
        HEAD,
        Segment(tokens(41), document="mill.md"),
        Segment(tokens(42), document="quay.md"),
        Segment(KNOWN[1], document="quay.md"),
        names=names,
    )
    assert reasons(parts)[1:] == ["changed", "not_indexed", "indexed"]


def test_a_document_may_repeat():
    parts = compose(HEAD, KNOWN[1], KNOWN[1], KNOWN[1])
    assert reasons(parts)[1:] == ["indexed"] * 3
    assert [span.start for span in parts.spans] == [5, 135, 265]


def test_a_split_document_is_found_in_its_pieces():
    long = tokens(250)
    pieces = split_ids(long, 100)
    assert [len(piece) for piece in pieces] == [100, 100, 50]
    assert [i for piece in pieces for i in piece] == long
    parts = compose(HEAD, long, longest=100, documents=[pieces[0], pieces[2]])
    assert reasons(parts)[1:] == ["indexed", "not_indexed", "indexed"]
    assert [(o.start, o.stop) for o in parts.outcomes[1:]] == [(5, 105), (105, 205), (205, 255)]
    assert parts.ids[5:] == long


def test_a_document_of_exactly_the_longest_length_is_not_split():
    parts = compose(HEAD, tokens(100), longest=100, documents=[tokens(100)])
    assert reasons(parts)[1:] == ["indexed"]
    pieces = [tokens(101)[:100], tokens(101)[100:]]
    parts = compose(HEAD, tokens(101), longest=100, documents=pieces)
    assert reasons(parts)[1:] == ["indexed", "indexed"]


def test_bits_of_a_span_are_the_bits_of_its_document():
    row = masks_of(tokens(130), LAYOUT)
    span = compose(HEAD, KNOWN[1]).spans[0]
    assert span.ca.numpy().tobytes() == row.ca.packed.tobytes()
    assert span.la is not None
    assert row.la is not None
    assert span.la.numpy().tobytes() == row.la.packed.tobytes()


@pytest.mark.parametrize("n", [1, 40])
def test_a_short_document_has_no_la_bits(n):
    assert compose(HEAD, tokens(n)).spans[0].la is None


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_any_sequence_of_ids_gives_the_same_plain_plan(kind):
    parts = Composition(lambda key: None, 100, lambda name: ())
    for ids in ([1, 2, 3], [4, 5]):
        parts.add(kind(ids))
    assert parts.ids == [1, 2, 3, 4, 5]
    assert {type(token) for token in parts.ids} == {int}


@pytest.mark.parametrize("glue", [True, False])
@pytest.mark.parametrize(
    "ids", [torch.tensor([[1, 2]]), np.array([[1, 2]]), [1.5], [-5], "hello", 7, [2**32]]
)
def test_what_is_no_row_of_token_ids_is_refused_in_every_place(ids, glue):
    parts = Composition(lambda key: None, 100, lambda name: ())
    with pytest.raises(UsageError, match="one dimension of integers"):
        parts.add(Segment(ids, glue=glue))
