"""Quality in words, on every way to a plan."""

import pytest

from sift_index.errors import UsageError
from sift_index.evaluation.methods.registry import Setting, make_methods
from sift_index.prompts import Segment
from sift_index.runtime.index import SiftIndex
from sift_index.runtime.levels import QUALITIES, level_of
from sift_index.runtime.request import to_request
from tests.plans import layout_of, loaded, tiny, tokens, write_index

MODEL = loaded(tiny("llama"))
LONG = tokens(500)


def opened(root, bits: int) -> SiftIndex:
    write_index(root / "i", MODEL, layout_of(MODEL.model, levels=bits), {"long": [LONG]})
    return SiftIndex.open(root / "i", MODEL.model, MODEL.tokenizer)


def prompt(index: SiftIndex) -> list[Segment]:
    writer = index.writer(MODEL)
    ends = [Segment(ids, glue=True) for ids in (writer.prefix(), writer.query("why?"))]
    return [ends[0], Segment(LONG), ends[1]]


@pytest.mark.parametrize("bits, expected", [(1, [1, 1, 1]), (2, [1, 2, 3])])
def test_words_are_levels(bits, expected):
    assert [level_of(quality, bits) for quality in QUALITIES] == expected
    assert [level_of(level, bits) for level in set(expected)] == sorted(set(expected))


def test_every_way_to_a_plan_takes_a_quality(tmp_path):
    index = opened(tmp_path, 2)
    ids = [i for part in prompt(index) for i in part.ids]
    request = to_request(index.compose(prompt(index)))
    for quality, level in (("best", 1), ("balanced", 2), ("fast", 3), (2, 2)):
        plans = [
            index.compose(prompt(index), quality=quality),
            index.compose_ids(ids, quality=quality),
            index.from_request(request, quality=quality),
            index.compose(prompt(index)).at(quality),
        ]
        assert [plan.sparse.level for plan in plans] == [level] * 4
        assert [plan.hits for plan in plans] == [1] * 4
        assert plans[0].notes() == []
    shares = [index.compose(prompt(index), quality=q).density.total.share for q in QUALITIES]
    assert shares == sorted(shares, reverse=True) and len(set(shares)) == 3


def test_with_one_level_all_qualities_are_one_and_a_note_says_so(tmp_path):
    index = opened(tmp_path, 1)
    for quality in ("balanced", "fast"):
        plan = index.compose(prompt(index), quality=quality)
        assert plan.sparse.level == 1
        assert [f"quality '{quality}' is the same as 'best'" in note for note in plan.notes()] == [
            True
        ]
    assert index.compose(prompt(index), quality="best").notes() == []


@pytest.mark.parametrize("quality", ["cheap", 4, 0, 1.0, True])
def test_what_is_no_quality_is_refused(tmp_path, quality):
    index = opened(tmp_path, 2)
    with pytest.raises(UsageError, match="a level of 1 to 3 .* or one of best, balanced, fast"):
        index.compose(prompt(index), quality=quality)


def test_a_level_and_a_quality_are_refused(tmp_path):
    index = opened(tmp_path, 2)
    with pytest.raises(UsageError, match="level 2 and quality 'fast'; give one"):
        index.compose(prompt(index), level=2, quality="fast")


@pytest.mark.parametrize("name, level", [("sift:best", 1), ("sift:balanced", 2), ("sift:fast", 3)])
def test_an_evaluation_takes_words_for_levels(tmp_path, name, level):
    index = opened(tmp_path, 2)
    (method,) = make_methods([name], Setting(MODEL, index)).values()
    plan = method(prompt(index)).plan
    assert plan is not None and plan.sparse.level == level
