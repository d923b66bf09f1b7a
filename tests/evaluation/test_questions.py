"""Question files: every problem names its line and field."""

import json

import pytest

from sift_index.errors import UsageError
from sift_index.evaluation.questions import (
    Question,
    example_corpus,
    example_questions,
    load_question_files,
    load_questions,
    select_questions,
)

GOOD = {"id": 7, "question": "Who?", "answers": ["Edda"], "documents": [{"text": "Edda did."}]}


def write(tmp_path, *lines, name="q.jsonl"):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    )
    return path


def test_a_question(tmp_path):
    documents = [{"text": "Body", "title": "Title", "doc_id": "a"}, {"text": "Edda did."}]
    path = write(tmp_path, {**GOOD, "documents": documents, "source": "hop"}, "", GOOD)
    assert load_questions(path) == [
        Question("7", "Who?", ("Edda",), ("Title\nBody", "Edda did."), "hop", "q", "f1", 32),
        Question("7", "Who?", ("Edda",), ("Edda did.",), dataset="q"),
    ]


def test_documents_by_file_name(tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.md").write_text("Ä text")
    path = write(tmp_path, {**GOOD, "documents": ["a.md"]})
    assert load_questions(path, corpus)[0].documents == ("Ä text",)
    with pytest.raises(UsageError, match="line 1: .*names of files need --corpus"):
        load_questions(path)


def without(field):
    return {name: value for name, value in GOOD.items() if name != field}


BAD = {
    "no JSON": ("{", "expected a JSON object, found"),
    "a list": ("[1]", "expected a JSON object, found list"),
    **{f"no {f}": (without(f), f"field '{f}' is missing; found ") for f in GOOD},
    "question": ({**GOOD, "question": 3}, "field 'question' has type int; give a text"),
    "answers": ({**GOOD, "answers": "Edda"}, "field 'answers' has type str"),
    "no answer": ({**GOOD, "answers": []}, "'answers' as texts, at least one"),
    "answer": ({**GOOD, "answers": [None]}, "'answers' as texts, at least one"),
    "id": ({**GOOD, "id": None}, "field 'id' has type NoneType; give a text or"),
    "documents": ({**GOOD, "documents": {}}, "field 'documents' has type dict"),
    "document": ({**GOOD, "documents": [{"title": "x"}]}, "'documents' as objects with a 'text'"),
    "text": ({**GOOD, "documents": [{"text": 1}]}, "'documents' as objects with a 'text'"),
    "file": ({**GOOD, "documents": ["no.md"]}, "document 'no.md' is not a file of"),
    "outside": ({**GOOD, "documents": ["../q.jsonl"]}, "document '../q.jsonl' is not a file of"),
    "not UTF-8": ({**GOOD, "documents": ["bytes.md"]}, "bytes.md cannot be read"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_line_is_refused_naming_line_and_field(tmp_path, case):
    line, message = BAD[case]
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "bytes.md").write_bytes(b"caf\xe9")
    with pytest.raises(UsageError) as caught:
        load_questions(write(tmp_path, GOOD, "", line), corpus)
    assert str(caught.value).startswith("q.jsonl line 3: ")
    assert message in str(caught.value)


def test_an_empty_missing_or_binary_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="expected questions in .*found none"):
        load_questions(write(tmp_path, "", " "))
    with pytest.raises(UsageError, match="missing.jsonl cannot be read"):
        load_questions(tmp_path / "missing.jsonl")
    (tmp_path / "q.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot be read"):
        load_questions(tmp_path / "q.jsonl")


def test_the_packaged_questions_are_about_the_packaged_corpus():
    questions = example_questions()
    files = {path.read_text(encoding="utf-8") for path in example_corpus().iterdir()}
    assert len(questions) >= 10
    assert len({question.id for question in questions}) == len(questions)
    assert {question.dataset for question in questions} == {"examples"}
    for question in questions:
        assert set(question.documents) <= files
        assert any(question.answers[0] in text for text in question.documents)


def test_corpus_files_are_read_as_builds_read_them(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo")
    entry = {"id": 1, "question": "?", "answers": ["one"], "documents": ["sub/a.txt"]}
    (tmp_path / "q.jsonl").write_text(json.dumps(entry))
    assert load_questions(tmp_path / "q.jsonl", tmp_path)[0].documents == ("one\r\ntwo",)


@pytest.mark.parametrize("name", ["../secret.txt", "/etc/hostname", "missing.txt"])
def test_names_outside_the_corpus_are_refused(tmp_path, name):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (tmp_path / "secret.txt").write_text("no")
    entry = {"id": 1, "question": "?", "answers": ["one"], "documents": [name]}
    (tmp_path / "q.jsonl").write_text(json.dumps(entry))
    with pytest.raises(UsageError, match="line 1: document"):
        load_questions(tmp_path / "q.jsonl", corpus)


@pytest.mark.parametrize("line", ["[" * 100_000, '{"id": ' + "1" * 5000 + "}", '{"id": "\\ud800"}'])
def test_hostile_lines_are_usage_errors(tmp_path, line):
    (tmp_path / "q.jsonl").write_text(line)
    with pytest.raises(UsageError, match="line 1"):
        load_questions(tmp_path / "q.jsonl")


def test_several_files_one_after_the_other(tmp_path):
    first = write(tmp_path, GOOD, {**GOOD, "id": 8}, name="a.jsonl")
    second = write(tmp_path, GOOD, name="b.jsonl")
    found = load_question_files([second, first])
    assert [(question.dataset, question.id) for question in found] == [
        ("b", "7"),
        ("a", "7"),
        ("a", "8"),
    ]


def test_several_files_share_a_corpus(tmp_path):
    (tmp_path / "a.md").write_text("text")
    path = write(tmp_path, {**GOOD, "documents": ["a.md"]})
    assert load_question_files([path], tmp_path)[0].documents == ("text",)


def test_a_repeated_id_is_refused_naming_both(tmp_path):
    first = write(tmp_path, GOOD, name="one/q.jsonl")
    second = write(tmp_path, {**GOOD, "id": 8}, {**GOOD, "id": "7"}, name="two/q.jsonl")
    with pytest.raises(UsageError) as caught:
        load_question_files([first, second])
    assert "found '7' of 'q' as" in str(caught.value)
    assert f"question 1 of {first} and as question 2 of {second}; change" in str(caught.value)
    with pytest.raises(UsageError, match="question 1 of .* and as question 2 of"):
        load_question_files([write(tmp_path, GOOD, GOOD)])


def test_no_file_is_refused():
    with pytest.raises(UsageError, match="at least one questions file, found none"):
        load_question_files([])


def test_questions_are_selected_by_prompt_length():
    questions = [Question(str(n), "?", ("x",), ("x" * n,)) for n in (9, 3, 5, 4, 6)]
    kept, left_out = select_questions(questions, lambda q: len(q.documents[0]), 4, 6)
    assert [question.id for question in kept] == ["5", "4", "6"]
    assert left_out == 2
    assert select_questions([], lambda q: 1, 0, 0) == ([], 0)
    with pytest.raises(UsageError, match="from low to high, found 7 to 6 tokens"):
        select_questions(questions, lambda q: 5, 7, 6)


def test_the_shared_data_loads(shared_data):
    files = sorted(shared_data.glob("*/*.jsonl"))
    questions = load_question_files(files)
    assert {question.dataset for question in questions} == {path.stem for path in files}
    assert all(question.documents and question.answers[0] for question in questions)
