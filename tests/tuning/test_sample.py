"""Samples of prompts: the same every time, within the budget, large enough or refused."""

import random
from collections.abc import Sequence

import pytest

from sift_index.errors import UsageError
from sift_index.evaluation.questions import Question
from sift_index.prompts import PromptWriter
from sift_index.tuning.sample import (
    MIN_PROMPTS,
    choose_questions,
    make_questions,
    quoted,
    sample_of,
    token_budget,
)
from tests.plans import TEMPLATE
from tests.tiny import byte_tokenizer

WRITER = PromptWriter(byte_tokenizer(), TEMPLATE)


def text(number: int, sentences: int = 4) -> str:
    return " ".join(
        f"Mill {number} was built in year {1700 + 10 * number + n} by people of town {n}."
        for n in range(sentences)
    )


TEXTS = [text(number) for number in range(12)]


def length(question: Question) -> int:
    return sum(len(s.ids) for s in WRITER.prompt(question.documents, question.question))


def with_documents(number: int, *documents: str) -> Question:
    return Question(str(number), f"Question {number}?", ("a",), documents)


def words(text: str) -> list[str]:
    return text.split()


# --- made from a corpus ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made() -> list[Question]:
    return make_questions(TEXTS, WRITER, 6, 1000, seed=3)


def test_as_many_documents_as_fit_make_a_prompt(made):
    assert len(made) == 6
    for question in made:
        assert length(question) <= 1000
        assert len(set(question.documents)) == len(question.documents) > 1
        assert set(question.documents) <= set(TEXTS)
        # Texts differ by a few bytes only: one more would not have fitted.
        assert length(question) + len(WRITER.document(TEXTS[0])) > 1000


def test_the_answer_follows_the_quote_in_a_document_of_the_prompt(made):
    for question in made:
        quote = question.question.split('"')[1]
        (answer,) = question.answers
        assert any(f"{quote} {answer}" in document for document in question.documents)


def test_the_quoted_document_stands_anywhere(made):
    places = set()
    for question in made:
        quote = question.question.split('"')[1]
        places.add(next(i for i, d in enumerate(question.documents) if quote in d))
    assert len(places) > 1


def test_the_same_seed_gives_the_same_prompts(made):
    assert make_questions(TEXTS, WRITER, 6, 1000, seed=3) == made
    assert make_questions(TEXTS, WRITER, 6, 1000, seed=4) != made


def test_no_prompt_comes_twice():
    found = make_questions(["a b c d e f", "g h i j k l"], WRITER, 50, 1000)
    # Two sentences to quote, two orders of the documents.
    assert len({(question.question, question.documents) for question in found}) == len(found) == 4


def test_a_long_document_is_cut_so_that_another_fits():
    long = [text(number, 60) for number in range(4)]
    for question in make_questions(long, WRITER, 4, 900):
        assert length(question) <= 900 and len(question.documents) == 2
        assert all(len(WRITER.document(part)) <= 300 for part in question.documents)
        assert all(any(whole.startswith(part) for whole in long) for part in question.documents)


@pytest.mark.parametrize(
    ("texts", "budget", "reason"),
    [
        ([], 1000, "made of 0 different documents"),
        ([TEXTS[0]], 1000, "made of 1 different documents"),
        ([TEXTS[0], TEXTS[0], " \n"], 1000, "made of 1 different documents"),
        (TEXTS, 100, "prompts of up to 100 tokens"),
        (TEXTS, -60, "prompts of up to -60 tokens"),
        (["one two", "three"], 1000, "found 0 .made of 2 different"),  # nothing to quote
    ],
)
def test_too_small_a_corpus_is_refused(texts: Sequence[str], budget, reason):
    with pytest.raises(UsageError, match=f"expected at least {MIN_PROMPTS} prompts.*{reason}"):
        make_questions(texts, WRITER, 12, budget)


def test_a_quote_begins_a_sentence_or_a_line():
    text = "One two three four five six. Short.\nA b c d e f g h"
    found = {quoted(text, random.Random(seed)) for seed in range(20)}
    assert found == {("One two three", "four five six."), ("A b c d", "e f g h")}


def test_a_quote_is_counted_in_characters_where_there_are_no_words():
    found = quoted("第一句话讲的是水车的历史。", random.Random(0))
    assert found == ("第一句话讲的", "是水车的历史。")


def test_quotes_and_answers_end_after_some_words():
    quote, answer = quoted(" ".join(map(str, range(100))), random.Random(0)) or ("", "")
    assert (words(quote), words(answer)) == (
        list(map(str, range(8))),
        list(map(str, range(8, 24))),
    )


def test_nothing_to_quote():
    assert quoted("a b c. d e.\n", random.Random(0)) is None
    assert quoted("", random.Random(0)) is None


# --- given questions ---------------------------------------------------------------------------

GIVEN = [
    *(with_documents(n, "a" * 20, "b" * (20 + n)) for n in range(8)),
    with_documents(8, "alone"),
    with_documents(9, "a" * 900, "b" * 900),
]


def test_questions_keep_their_order_and_come_from_everywhere():
    chosen = choose_questions(GIVEN, length, 5, 500, seed=1)
    numbers = [int(question.id) for question in chosen]
    assert numbers == sorted(numbers) and len(numbers) == 5 and max(numbers) < 8
    assert chosen == choose_questions(GIVEN, length, 5, 500, seed=1)
    assert choose_questions(GIVEN, length, 5, 500, seed=2) != chosen


def test_all_that_fit_are_taken_when_there_are_no_more():
    assert choose_questions(GIVEN, length, 12, 500) == GIVEN[:8]
    assert choose_questions(GIVEN, length, 12, 4000) == [*GIVEN[:8], GIVEN[9]]


def test_the_budget_is_the_longest_prompt():
    longest = length(GIVEN[5])
    assert choose_questions(GIVEN, length, 12, longest) == GIVEN[:6]


def test_too_few_questions_are_refused_with_the_reasons():
    with pytest.raises(UsageError, match="at least 4 prompts.*found 3") as caught:
        choose_questions(GIVEN[5:], length, 12, 500)
    assert "of 5 questions, 1 have fewer than two documents" in str(caught.value)
    assert "1 prompts are longer than 500 tokens" in str(caught.value)


@pytest.mark.parametrize("count", [0, 3, -1])
def test_a_sample_that_would_say_nothing_is_refused(count):
    for sample in (
        lambda: choose_questions(GIVEN, length, count, 500),
        lambda: make_questions(TEXTS, WRITER, count, 1000),
    ):
        with pytest.raises(UsageError, match=f"at least 4 prompts.*found {count}.*--prompts"):
            sample()


# --- numbers -----------------------------------------------------------------------------------


def test_a_budget_leaves_room_for_the_answer():
    assert token_budget(8192) == 6000
    assert token_budget(4096) == 4032
    assert token_budget(8192, 700) == 700
    assert token_budget(8192, 100_000) == 8128


def test_a_sample_of_a_stream_is_uniform_ordered_and_repeatable():
    assert sample_of(iter(range(5)), 9) == [0, 1, 2, 3, 4]
    seen: dict[int, int] = {}
    for seed in range(400):
        found = sample_of(iter(range(10)), 3, seed)
        assert found == sorted(set(found)) and len(found) == 3
        assert found == sample_of(range(10), 3, seed)
        for number in found:
            seen[number] = seen.get(number, 0) + 1
    assert len(seen) == 10 and all(80 < count < 165 for count in seen.values())
