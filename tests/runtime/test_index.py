"""An index on disk: opened, checked against a model, composed, counted."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from sift_index.errors import (
    FeatureError,
    FingerprintMismatchError,
    IndexNotFoundError,
    SiftWarning,
    UsageError,
)
from sift_index.fingerprints import build_fingerprint
from sift_index.prompts import Segment
from sift_index.runtime.index import SiftIndex
from sift_index.selection.policy import ProbePolicy
from tests.plans import TEMPLATE, layout_of, loaded, masks_of, tiny, tokens, write_index
from tests.tiny import byte_tokenizer, tiny_model_of

MODEL = loaded(tiny("llama"))
LAYOUT = layout_of(MODEL.model)
TWO_BITS = layout_of(MODEL.model, levels=2)
SHORT, LONG = tokens(40), tokens(500)
DOCUMENTS = {"short": [SHORT], "long": [LONG], "split": [tokens(600)[:400], tokens(600)[400:]]}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    path = tmp_path_factory.mktemp("index") / "i"
    return write_index(path, MODEL, LAYOUT, DOCUMENTS, longest=400 + 100)


@pytest.fixture
def index(root):
    return SiftIndex.open(root, MODEL.model, MODEL.tokenizer)


def prompt_of(index, *parts):
    writer = index.writer(MODEL)
    return [
        Segment(writer.prefix(), glue=True),
        *parts,
        Segment(writer.query("why?"), glue=True),
    ]


def reasons(plan) -> list[str]:
    return [outcome.reason for outcome in plan.outcomes]


@pytest.fixture
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_every_reason_once(index, no_warnings):
    plan = index.compose(
        prompt_of(
            index,
            SHORT,
            [],
            Segment(SHORT, glue=True),
            Segment(tokens(41), document="short"),
            Segment(tokens(42), document="nobody"),
            Segment(LONG, document="long"),
        )
    )
    assert reasons(plan) == [
        "declared_glue",
        "indexed",
        "empty",
        "declared_glue",
        "changed",
        "not_indexed",
        "indexed",
        "declared_glue",
    ]
    assert plan.warnings == ()
    assert (plan.hits, plan.misses) == (2, 2)
    assert plan.sparse.layout == LAYOUT
    assert plan.fingerprint == index.fingerprint


def test_a_document_in_front_of_everything_has_no_prefix(index):
    with pytest.warns(SiftWarning):
        plan = index.compose([SHORT, LONG])
    assert reasons(plan) == ["no_prefix", "indexed"]


def test_counters_add_up_over_prompts(index):
    index.compose(prompt_of(index, SHORT, LONG))
    index.compose(prompt_of(index, SHORT, tokens(3), SHORT))
    counters = index.counters
    assert (counters.prompts, counters.hits, counters.misses, counters.warnings) == (2, 4, 1, 0)


def test_a_split_document_is_found_in_its_pieces(root):
    pieces = {"whole": [tokens(900)[:500], tokens(900)[500:]]}
    path = write_index(root.parent / "pieces", MODEL, LAYOUT, pieces, longest=500)
    index = SiftIndex.open(path, MODEL.model, MODEL.tokenizer)
    plan = index.compose(prompt_of(index, Segment(tokens(900), document="whole")))
    assert reasons(plan)[1:-1] == ["indexed", "indexed"]
    start = plan.sparse.spans[0].start
    assert [(s.start - start, s.stop - start) for s in plan.sparse.spans] == [(0, 500), (500, 900)]
    changed = [*tokens(900)[:-1], 1]
    plan = index.compose(prompt_of(index, Segment(changed, document="whole")))
    assert reasons(plan)[1:-1] == ["indexed", "changed"]


def test_repeated_documents_share_their_bits(index):
    plan = index.compose(prompt_of(index, LONG, LONG))
    one, two = plan.sparse.spans
    assert one.ca.data_ptr() == two.ca.data_ptr()
    assert two.start == one.stop


def test_bits_come_from_the_pack(index):
    span = index.compose(prompt_of(index, LONG)).sparse.spans[0]
    row = masks_of(LONG, LAYOUT)
    assert np.array_equal(span.ca.numpy(), row.ca.packed)
    assert span.la is not None
    assert row.la is not None
    assert np.array_equal(span.la.numpy(), row.la.packed)
    assert index.lookup(LONG) == row
    assert index.lookup(tokens(3)) is None


@pytest.mark.parametrize("count", [1, 2, 500])
def test_any_number_of_documents_repeated_and_reordered(index, count):
    order = [(SHORT, LONG)[(i * 7) % 3 % 2] for i in range(count)]
    plan = index.compose(prompt_of(index, *order))
    assert plan.hits == count
    start = len(index.writer(MODEL).prefix())
    for span, ids in zip(plan.sparse.spans, order, strict=True):
        assert (span.start, span.stop) == (start, start + len(ids))
        assert list(plan.ids[span.start : span.stop]) == ids
        start = span.stop
    backwards = index.compose(prompt_of(index, *order[::-1]))
    keys = [outcome.key for outcome in plan.outcomes]
    assert [outcome.key for outcome in backwards.outcomes] == keys[::-1]


def test_an_empty_query_leaves_a_prompt_that_ends_in_a_span(index):
    head, *_ = prompt_of(index)
    plan = index.compose([head, SHORT, LONG, Segment([], glue=True)])
    assert reasons(plan) == ["declared_glue", "indexed", "indexed", "empty"]
    assert plan.sparse.spans[-1].stop == plan.length == len(head.ids) + len(SHORT) + len(LONG)


# --- prefix ------------------------------------------------------------------------------------


def test_another_prefix_warns_once_a_prompt_and_is_counted(index):
    with pytest.warns(SiftWarning, match="not the prefix the index was built behind") as caught:
        plan = index.compose([Segment(tokens(9), glue=True), SHORT, LONG, SHORT])
    assert len(caught) == 1
    assert caught[0].filename == __file__  # the line that composes, not one of ours
    assert index.counters.warnings == 1
    assert plan.hits == 3
    assert len(plan.warnings) == 1
    assert plan.warnings[0] in plan.notes()


def test_another_prefix_is_refused_when_strict_and_nothing_is_counted(root):
    index = SiftIndex.open(root, MODEL.model, MODEL.tokenizer, strict=True)
    with pytest.raises(FingerprintMismatchError, match="strict: the tokens before the first"):
        index.compose([Segment(tokens(9), glue=True), SHORT])
    assert index.counters.prompts == 0
    assert index.compose(prompt_of(index, SHORT)).hits == 1


def test_glue_behind_the_prefix_makes_it_another(index):
    head, *rest = prompt_of(index, SHORT)
    with pytest.warns(SiftWarning, match="not the prefix"):
        index.compose([head, Segment([5, 6], glue=True), *rest])


def test_a_first_document_that_is_not_indexed_does_not_change_the_prefix(root, no_warnings):
    index = SiftIndex.open(root, MODEL.model, MODEL.tokenizer, strict=True)
    plan = index.compose(prompt_of(index, tokens(33), SHORT))
    assert reasons(plan)[1:3] == ["not_indexed", "indexed"]


def test_a_prefix_in_two_undeclared_parts_is_the_prefix(index, no_warnings):
    head, *rest = prompt_of(index, SHORT)
    assert index.compose([list(head.ids[:4]), list(head.ids[4:]), *rest]).hits == 1


def test_an_index_without_a_prefix_expects_none(tmp_path, no_warnings):
    built = replace(MODEL, prompt=replace(TEMPLATE, prefix=""))
    root = write_index(tmp_path / "i", built, LAYOUT, DOCUMENTS)
    index = SiftIndex.open(root, MODEL.model, MODEL.tokenizer, strict=True)
    plan = index.compose([SHORT, LONG, Segment(tokens(9), glue=True)])
    assert reasons(plan) == ["no_prefix", "indexed", "declared_glue"]
    with pytest.raises(FingerprintMismatchError, match="strict: the tokens before the first"):
        index.compose([Segment(tokens(9), glue=True), LONG])


def test_a_prompt_without_spans_has_nothing_to_warn_about(index, no_warnings):
    assert index.compose([tokens(9), tokens(8)]).hits == 0
    assert index.compose([]).length == 0


# --- model and tokenizer -----------------------------------------------------------------------


def other_tokenizer():
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<doc>"])
    return tokenizer


def test_another_tokenizer_warns_and_is_counted(root):
    with pytest.warns(SiftWarning, match=r"advisory\.tokenizer: index has"):
        index = SiftIndex.open(root, MODEL.model, other_tokenizer())
    assert index.counters.warnings == 1


def test_another_tokenizer_is_refused_when_strict(root):
    with pytest.raises(FingerprintMismatchError, match=r"strict: (.|\n)*advisory\.tokenizer"):
        SiftIndex.open(root, MODEL.model, other_tokenizer(), strict=True)
    assert SiftIndex.open(root, MODEL.model, MODEL.tokenizer, strict=True)


def test_another_model_is_refused_at_open_or_later(root):
    other = tiny_model_of("llama", seed=3)
    with pytest.raises(FingerprintMismatchError, match=r"serve\.weights"):
        SiftIndex.open(root, other)
    index = SiftIndex.open(root)
    with pytest.raises(FingerprintMismatchError, match=r"serve\.weights"):
        index.check_model(other)


def test_the_writer_uses_the_texts_of_the_build(tmp_path):
    built = replace(MODEL, prompt=replace(TEMPLATE, prefix="<s>Built:", span_suffix="\n--\n"))
    index = SiftIndex.open(write_index(tmp_path / "i", built, LAYOUT, DOCUMENTS))
    writer = index.writer(MODEL)
    assert MODEL.tokenizer.decode(writer.prefix()) == "<s>Built:"
    assert MODEL.tokenizer.decode(writer.document("x")) == "\nx\n--\n"
    assert writer.query("q") == MODEL.tokenizer("\nQuestion: q\nAnswer:").input_ids


# --- measured quality --------------------------------------------------------------------------


def test_an_unmeasured_index_warns_once_an_open_and_is_not_refused(tmp_path):
    path = write_index(tmp_path / "i", MODEL, LAYOUT, DOCUMENTS, quality=None)
    with pytest.warns(SiftWarning, match="no measured quality.*sift-index tune.*eval") as caught:
        index = SiftIndex.open(path, MODEL.model, MODEL.tokenizer, strict=True)
        index.compose(prompt_of(index, SHORT))
        index.check_model(MODEL.model, MODEL.tokenizer)
    assert len(caught) == 1 and index.counters.warnings == 1
    assert caught[0].filename == __file__


def test_a_measured_index_has_nothing_to_warn_about(root, no_warnings):
    index = SiftIndex.open(root, MODEL.model, MODEL.tokenizer)
    assert index.counters.warnings == 0


# --- layout, levels, versions ------------------------------------------------------------------


def test_a_tile_other_than_128_is_refused(tmp_path):
    plain = build_fingerprint(MODEL, ProbePolicy(), LAYOUT, [], 4000)
    serve = {**plain.serve, "layout": {**plain.serve["layout"], "tile": 64}}
    other = replace(plain, serve=serve)
    path = write_index(tmp_path / "i", MODEL, LAYOUT, DOCUMENTS, fingerprint=other)
    with pytest.raises(FeatureError, match="tiles of 128 rows, found 64"):
        SiftIndex.open(path)


def test_a_level_selects_nested_bits(tmp_path):
    path = write_index(tmp_path / "i", MODEL, TWO_BITS, DOCUMENTS)
    index = SiftIndex.open(path, MODEL.model)
    plans = [index.compose(prompt_of(index, LONG, SHORT), level) for level in (1, 2, 3)]
    assert [plan.sparse.level for plan in plans] == [1, 2, 3]
    cells = [plan.density.ca.visited for plan in plans]
    assert cells[0] > cells[1] > cells[2]


@pytest.mark.parametrize("level", [0, 2, -1])
def test_a_level_that_the_index_lacks_is_refused(index, level):
    with pytest.raises(UsageError, match=rf"a level of 1 to 1 .*1 bits.*, found {level}"):
        index.compose(prompt_of(index, SHORT), level)


def test_two_bits_have_three_levels(tmp_path):
    path = write_index(tmp_path / "i", MODEL, TWO_BITS, DOCUMENTS)
    with pytest.raises(UsageError, match="a level of 1 to 3 .*found 4"):
        SiftIndex.open(path).compose([], 4)


def test_a_folder_without_an_index_is_refused(tmp_path):
    with pytest.raises(IndexNotFoundError, match="sift-index build"):
        SiftIndex.open(tmp_path)


def test_a_version_that_does_not_exist_is_refused(root):
    assert SiftIndex.open(root, version=1).reader.manifest.version == 1
    with pytest.raises(IndexNotFoundError, match="version 2"):
        SiftIndex.open(root, version=2)


def test_short_glue_is_noted_through_the_index(index):
    separator = Segment([7, 7], glue=True)
    plan = index.compose(prompt_of(index, LONG, separator, SHORT, separator, LONG))
    assert any("span_prefix or span_suffix" in note for note in plan.notes())
