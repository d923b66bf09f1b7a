"""Documents found in raw prompts, against looking at every offset and length."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_index.errors import FingerprintMismatchError, IntegrityError, UsageError
from sift_index.formats.identity import ANCHOR_TOKENS, document_key
from sift_index.runtime.find import FoundSpan
from sift_index.runtime.index import SiftIndex
from tests.plans import layout_of, loaded, tiny, tokens, write_index

MODEL = loaded(tiny("llama"))
# One begins like another and goes on, one lies inside another, one is too short for an anchor.
BASE = tokens(400, seed=1)
DOCUMENTS = {
    "long": BASE,
    "beginning": BASE[:60],
    "inside": BASE[100:180],
    "other": tokens(33, seed=2),
    "least": tokens(ANCHOR_TOKENS, seed=3),
    "short": tokens(ANCHOR_TOKENS - 1, seed=4),
}


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    root = tmp_path_factory.mktemp("index") / "i"
    layout = layout_of(MODEL.model)
    write_index(root, MODEL, layout, {name: [ids] for name, ids in DOCUMENTS.items()}, longest=500)
    return SiftIndex.open(root, MODEL.model, MODEL.tokenizer)


def exhaustive(ids: list[int]) -> list[FoundSpan]:
    """Every document at every place; then the longest first, the first of equals."""
    found = [
        FoundSpan(at, at + len(document), document_key(document))
        for document in DOCUMENTS.values()
        if len(document) >= ANCHOR_TOKENS
        for at in range(len(ids) - len(document) + 1)
        if ids[at : at + len(document)] == document
    ]
    kept: list[FoundSpan] = []
    for span in sorted(found, key=lambda one: (one.start - one.stop, one.start)):
        if all(span.stop <= other.start or other.stop <= span.start for other in kept):
            kept.append(span)
    return sorted(kept, key=lambda one: one.start)


PIECES = [*DOCUMENTS.values(), BASE[:59], BASE[100:], BASE[:300], [], [7], tokens(20, seed=5)]


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=8))
def test_what_is_found_is_what_is_there(index, pieces):
    ids = [token for piece in pieces for token in piece]
    assert index.find_spans(ids) == exhaustive(ids)


def test_the_longest_of_nested_documents_counts(index):
    ids = [5, *BASE, 6, *BASE[:60], *BASE[100:180], 9]
    spans = index.find_spans(np.array(ids))
    assert [(span.start, span.stop) for span in spans] == [(1, 401), (402, 462), (462, 542)]
    assert spans[0].key == document_key(BASE)


def test_a_raw_prompt_becomes_the_plan_of_its_parts(index):
    writer = index.writer(MODEL)
    prefix, query = writer.prefix(), writer.query("why?")
    ids = [*prefix, *BASE, *DOCUMENTS["other"], 3, *DOCUMENTS["short"], *query]
    plan = index.compose_ids(ids)
    assert plan.ids == tuple(ids)
    assert [(o.kind, o.stop - o.start) for o in plan.outcomes] == [
        ("glue", len(prefix)),
        ("span", 400),
        ("span", 33),
        ("glue", 16 + len(query)),
    ]
    declared = index.compose([prefix, BASE, DOCUMENTS["other"], [3, *DOCUMENTS["short"], *query]])
    assert [(s.start, s.stop) for s in plan.sparse.spans] == [
        (s.start, s.stop) for s in declared.sparse.spans
    ]


def test_damage_of_another_document_that_begins_alike_is_no_matter(tmp_path):
    documents = {str(n): [[*BASE[:20], *tokens(30 + n, seed=n)]] for n in range(3)}
    root = tmp_path / "i"
    write_index(root, MODEL, layout_of(MODEL.model), documents, longest=500)
    (pack,) = (root / "packs").iterdir()
    found = SiftIndex.open(root)
    masks = found.lookup(documents["1"][0])
    assert masks is not None
    data = bytearray(pack.read_bytes())
    at = data.index(masks.ca.packed.tobytes())
    pack.chmod(0o644)
    data[at] ^= 1
    pack.write_bytes(data)
    damaged = SiftIndex.open(root)
    with pytest.raises(IntegrityError):
        damaged.lookup(documents["1"][0])
    ids = [9, *documents["0"][0], 9, *documents["2"][0]]
    assert [span.start for span in damaged.find_spans(ids)] == [1, 2 + len(documents["0"][0])]


def test_a_document_at_the_very_start_holds_the_sink_and_is_glue(index):
    plan = index.compose_ids([*BASE, *DOCUMENTS["other"]])
    assert [outcome.reason for outcome in plan.outcomes] == ["no_prefix", "indexed"]


@pytest.mark.parametrize("ids", [[], [1, 2, 3], list(range(15))])
def test_prompts_too_short_for_an_anchor(index, ids):
    assert index.find_spans(ids) == []
    assert index.compose_ids(ids).hits == 0


@pytest.mark.parametrize("ids", [[-1] * 20, [[1, 2]], ["a"]])
def test_ids_that_are_none(index, ids):
    with pytest.raises(UsageError, match="token ids"):
        index.find_spans(ids)


def strict(index) -> SiftIndex:
    return SiftIndex.open(index.reader.paths.root, MODEL.model, MODEL.tokenizer, strict=True)


@pytest.mark.parametrize("first", [tokens(77, seed=8), DOCUMENTS["short"]])
def test_what_is_not_found_behind_the_prefix_does_not_change_it(index, first):
    ids = [*index.writer(MODEL).prefix(), *first, *DOCUMENTS["other"], 3]
    plan = strict(index).compose_ids(ids)
    assert (plan.hits, plan.warnings) == (1, ())


def test_a_raw_prompt_behind_another_prefix_is_refused_when_strict(index):
    right = index.writer(MODEL).prefix()
    for prefix in (tokens(11, seed=9), [7, *right], right[:-1]):
        with pytest.raises(FingerprintMismatchError, match="strict: the tokens before the first"):
            strict(index).compose_ids([*prefix, *DOCUMENTS["other"], 3])
