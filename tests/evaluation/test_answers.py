"""Answer scores against values worked out by hand from the published definitions."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_index.errors import UsageError
from sift_index.evaluation.answers import (
    AnswerScore,
    contains,
    exact_match,
    f1,
    normalise,
    score_answer,
)
from sift_index.evaluation.questions import Question, load_questions

RELAXED = settings(deadline=None)  # shared machines
WORDS = st.lists(st.sampled_from(["mill", "tide", "water", "1901", "the", "水車", "방앗간", "."]))
QUESTION = Question("q", "Which?", ("the tide mill", "mill"), ("text",))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  The  Tide\n\tMill. ", "tide mill"),
        ("An apple, a day", "apple day"),
        ("A.P.J. Abdul-Kalam's $1,268", "apj abdulkalams 1268"),
        ("theatre another", "theatre another"),
        ("t.h.e mill", "mill"),
        ("«Straižys» — “yes”…", "straižys yes"),
        ("巴斯夫（中国）有限公司。", "巴斯夫中国有限公司"),
        ("＄１２＋３～、　〜", "１２３"),
        ("5 € ©", "5 € ©"),
        ("a\u0301 la", "a\u0301 la"),  # an accented letter is no article
        ("The!", ""),
        ("", ""),
    ],
)
def test_normalise(text, expected):
    assert normalise(text) == expected


def test_all_ascii_punctuation_goes():
    assert normalise(string.punctuation) == ""


@pytest.mark.parametrize(
    ("prediction", "answer", "expected"),
    [
        ("the Tide Mill!", "tide mill", 1.0),
        ("It is the tide mill", "tide mill", 2 * 0.5 * 1 / 1.5),
        ("mill", "tide mill", 2 * 1 * 0.5 / 1.5),
        ("mill mill mill", "mill tide", 2 * (1 / 3) * 0.5 / (1 / 3 + 0.5)),
        ("mill mill", "mill mill tide", 2 * 1 * (2 / 3) / (1 + 2 / 3)),
        ("windmill", "mill", 0.0),
        ("Yes, it is.", "yes", 0.5),
        ("no", "yes", 0.0),
        ("没成功", "没有成功。", 2 * 1 * 0.75 / 1.75),
        ("位于 Berlin 市", "Berlin", 2 * 0.25 * 1 / 1.25),
        ("ひらカナ", "ひカ", 2 * 0.5 * 1 / 1.5),
        ("방앗간은", "방앗간", 2 * 0.75 * 1 / 1.75),
        ("ไทย", "ไท", 2 * (2 / 3) * 1 / (5 / 3)),
        ("𠀋丈", "𠀋", 2 * 0.5 * 1 / 1.5),
    ],
)
def test_f1_by_hand(prediction, answer, expected):
    assert f1(prediction, [answer]) == pytest.approx(expected)
    assert f1(answer, [prediction]) == pytest.approx(expected)


def test_the_best_accepted_answer_counts():
    assert f1("tide mill", ["wind mill", "tide mill", "x"]) == 1.0
    assert f1("tide mill", ["wind mill", "x"]) == 0.5
    assert exact_match("Tide mill.", ["wind mill", "the tide mill"]) == 1.0
    assert exact_match("mill tide", ["wind mill", "tide mill"]) == 0.0


def test_spaces_do_not_matter_between_characters_that_are_tokens():
    assert exact_match("龙门 石窟", ["龙门石窟。"]) == 1.0
    assert exact_match("tidemill", ["tide mill"]) == 0.0


@pytest.mark.parametrize("score", [f1, exact_match])
def test_texts_without_tokens(score):
    assert score("", [""]) == score(" . ", ["The"]) == 1.0
    assert score("", ["mill"]) == score("mill", [""]) == 0.0


def test_contains_is_the_share_of_references_found():
    assert contains("The UUID is AB-12.", ["ab-12"]) == 1.0
    assert contains("one and three", ["One", "two", "THREE", "four"]) == 0.5
    assert contains("ab 12", ["ab-12"]) == 0.0  # nothing is normalised but case
    assert contains("", ["x"]) == 0.0
    assert (contains("", [""]), contains("x", [""])) == (1.0, 0.0)


@pytest.mark.parametrize("score", [f1, exact_match, contains])
def test_no_accepted_answer_is_refused(score):
    with pytest.raises(UsageError, match="at least one accepted answer, found none"):
        score("mill", [])


def test_a_question_is_scored_by_its_metric():
    assert score_answer(" The mill\n", QUESTION) == AnswerScore(1.0, 1.0)
    assert score_answer("A wind mill", QUESTION) == AnswerScore(2 / 3, 0.0)
    needle = Question("n", "?", ("ab", "cd"), ("text",), metric="contains")
    assert score_answer(" it is AB, surely", needle) == AnswerScore(0.5, 0.5)


def test_every_line_of_the_prediction_counts():
    assert score_answer("mill\nQuestion: next", QUESTION).f1 == 0.5


def test_every_accepted_answer_of_the_shared_data_is_right(shared_data):
    for path in sorted(shared_data.glob("*/*.jsonl")):
        for question in load_questions(path):
            for answer in question.answers:
                assert score_answer(answer, question) == AnswerScore(1.0, 1.0), question.id


@RELAXED
@given(st.text(), st.lists(st.text(), min_size=1))
def test_scores_are_shares_and_exact_match_is_the_stricter(prediction, answers):
    for score in (f1, exact_match, contains):
        assert 0.0 <= score(prediction, answers) <= 1.0
    assert exact_match(prediction, answers) <= f1(prediction, answers)


@RELAXED
@given(st.text())
def test_a_text_answers_itself(text):
    assert f1(text, [text]) == exact_match(text, [text]) == contains(text, [text]) == 1.0


@RELAXED
@given(st.text())
def test_normalising_twice_changes_nothing(text):
    assert normalise(normalise(text)) == normalise(text)


@RELAXED
@given(WORDS.flatmap(lambda words: st.tuples(st.just(words), st.permutations(words))), WORDS)
def test_f1_does_not_see_the_order_of_words(orders, answer):
    one, other = (" ".join(words) for words in orders)
    assert f1(one, [" ".join(answer)]) == f1(other, [" ".join(answer)])


@RELAXED
@given(st.text(), st.text())
def test_f1_is_symmetric(one, other):
    assert f1(one, [other]) == f1(other, [one])


@RELAXED
@given(st.text(), st.lists(st.text(), min_size=1), st.text())
def test_another_accepted_answer_never_lowers_f1(prediction, answers, other):
    assert f1(prediction, [*answers, other]) >= f1(prediction, answers)
