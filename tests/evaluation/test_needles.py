"""RULER's needle texts become documents and a question, without losing a line."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_index.errors import UsageError
from sift_index.evaluation.needles import split_needle
from sift_index.evaluation.questions import load_questions

HEADER = "A special magic uuid is hidden within the following text. Make sure to memorize it."
ASKED = "What is the special magic uuid for ab mentioned in the provided text?"
LINES = [f"One of the special magic uuids for {n:03} is: {n * 7:03}." for n in range(40)]
INPUT = "\n".join([HEADER, *LINES, ASKED])
LINE = {"index": 3, "input": INPUT, "outputs": ["007"], "length": 9}


def write(tmp_path, *lines):
    path = tmp_path / "niah.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def test_a_needle_question(tmp_path):
    question = load_questions(write(tmp_path, LINE))[0]
    assert (question.id, question.source, question.dataset) == ("needle-3", "RULER niah", "niah")
    assert (question.metric, question.answer_tokens) == ("contains", 64)
    assert (question.question, question.answers) == (ASKED, ("007",))
    assert len(question.documents) == 8
    assert question.documents[0].startswith(HEADER + "\n" + LINES[0] + "\n")
    assert "\n".join(question.documents) == "\n".join([HEADER, *LINES])


def test_both_forms_in_one_file(tmp_path):
    own = {"id": 1, "question": "?", "answers": ["x"], "documents": [{"text": "x"}], "input": 3}
    found = load_questions(write(tmp_path, own, LINE))
    assert [(question.id, question.metric) for question in found] == [
        ("1", "f1"),
        ("needle-3", "contains"),
    ]


def test_the_number_of_documents():
    assert len(split_needle("here", INPUT, 1).documents) == 1
    assert len(split_needle("here", INPUT, 20).documents) == 20
    few = split_needle("here", "\n".join([HEADER, *LINES[:2], ASKED]))
    assert few.documents == (f"{HEADER}\n{LINES[0]}", LINES[1])
    one_line = split_needle("here", "\n".join([HEADER, "words " * 999 + ".", ASKED]))
    assert len(one_line.documents) == 1


def test_blank_lines_and_carriage_returns_go():
    text = "\r\n".join(["", HEADER, "", LINES[0], " ", LINES[1], ASKED, "", ""])
    found = split_needle("here", text, 2)
    assert "\n".join(found.documents) == "\n".join([HEADER, LINES[0], LINES[1]])
    assert found.question == ASKED


@pytest.mark.parametrize(
    "asked",
    [
        ASKED + " The special magic uuid for ab mentioned in the provided text is",
        "What are all the special magic numbers for a, and b mentioned in the provided text? The",
    ],
)
def test_the_questions_of_ruler(asked):
    assert split_needle("here", "\n".join([HEADER, *LINES, asked])).question == asked


@settings(deadline=None)  # shared machines
@given(st.lists(st.text(st.characters(categories=["L"]), min_size=1, max_size=60), min_size=1))
def test_cutting_keeps_every_line_in_order_and_lengths_about_equal(lines):
    found = split_needle("here", "\n".join(["H", *lines, ASKED])).documents
    text = "\n".join(["H", *lines])
    assert "\n".join(found) == text
    longest_line = max(len(line) for line in lines) + 2
    assert max(map(len, found)) <= (len(text) + 1) / 8 + longest_line


BAD: dict[str, tuple[dict[str, object], str]] = {
    "index": ({"index": None}, "field 'index' has type NoneType; give a whole number or text"),
    "input": ({"input": ["x"]}, "field 'input' has type list; give a text"),
    "outputs": ({"outputs": "007"}, "field 'outputs' has type str; give a list"),
    "no output": ({"outputs": []}, "expected 'outputs' as texts, at least one, found []"),
    "number": ({"outputs": [7]}, "expected 'outputs' as texts, at least one, found [7]"),
    "empty": ({"input": " \n "}, "expected field 'input' with a header line, haystack lines and"),
    "short": ({"input": f"{HEADER}\n{ASKED}"}, "found 2 lines; give the text as RULER's"),
    "no question": ({"input": "\n".join([HEADER, *LINES])}, "'What is the special magic … "),
    "found": ({"input": "\n".join([ASKED, HEADER, "The end?"])}, "found 'The end?'; give the"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_needle_line_is_refused_naming_line_and_field(tmp_path, case):
    change, message = BAD[case]
    with pytest.raises(UsageError) as caught:
        load_questions(write(tmp_path, LINE, {**LINE, **change}))
    assert str(caught.value).startswith("niah.jsonl line 2: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("field", ["index", "input", "outputs"])
def test_a_missing_needle_field_is_named(tmp_path, field):
    line = {name: value for name, value in LINE.items() if name != field}
    with pytest.raises(UsageError, match=f"line 1: field '{field}' is missing; found .*length"):
        load_questions(write(tmp_path, line))


def test_the_shared_needles(shared_data):
    questions = load_questions(shared_data / "needle" / "ruler_niah_multikey_3_4k.jsonl")
    assert len(questions) == 40
    for question in questions:
        assert question.dataset == "ruler_niah_multikey_3_4k"
        assert sum(question.answers[0] in text for text in question.documents) == 1
        assert question.answers[0] not in question.question
        lengths = [len(text) for text in question.documents]
        assert len(lengths) == 8
        assert max(lengths) < 1.25 * min(lengths)
