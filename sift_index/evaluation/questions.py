"""Questions with their documents: one JSON object a line, validated line by line.

Two forms are read. Ours has the fields id, question, answers (list of texts), documents, source
(optional); a document is an object {"doc_id", "title", "text"} or, for the packaged examples, the
name of a corpus file. RULER's needle form has index, input (a whole prompt) and outputs; its
field length counts the tokens of another tokenizer and is not read.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from sift_index import configs
from sift_index.errors import UsageError
from sift_index.evaluation import needles
from sift_index.formats.presence import is_regular, resolved

OWN_FIELDS = frozenset({"question", "answers", "documents"})
NEEDLE_FIELDS = frozenset({"input", "outputs"})

_KIND_NAMES = {str: "text", int: "whole number", list: "list"}


@dataclass(frozen=True)
class Question:
    """One prompt to evaluate: `documents` are full texts in prompt order.

    `dataset` is the stem of the file it came from, `metric` how a generated answer is scored
    (`answers.score_answer`), and `answer_tokens` how many tokens that answer may have.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    documents: tuple[str, ...]
    source: str = ""
    dataset: str = ""
    metric: Literal["f1", "contains"] = "f1"
    answer_tokens: int = 32


def example_corpus() -> Path:
    """Return the folder of the packaged example corpus."""
    return configs.resource("examples", "corpus")


def example_questions() -> list[Question]:
    """Return the packaged questions about the example corpus, as data set "examples"."""
    found = load_questions(configs.resource("examples", "questions.jsonl"), example_corpus())
    return [replace(question, dataset="examples") for question in found]


def load_questions(path: Path, corpus: Path | None = None) -> list[Question]:
    """Read a questions file; UsageError names the line and the field that is missing or wrong."""
    try:
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"questions file {path} cannot be read: {problem}") from problem
    found = [
        replace(_parse(f"{path.name} line {number}", line, corpus), dataset=path.stem)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not found:
        raise UsageError(f"expected questions in {path}, found none")
    return found


def load_question_files(paths: Sequence[Path], corpus: Path | None = None) -> list[Question]:
    """Read several files one after the other.

    Raises UsageError as `load_questions` does, and where two questions share data set and id:
    results could not tell them apart.
    """
    if not paths:
        raise UsageError("expected at least one questions file, found none")
    found: list[Question] = []
    places: dict[tuple[str, str], str] = {}
    for place, question in _placed(paths, corpus):
        name = (question.dataset, question.id)
        if name in places:
            raise UsageError(
                f"expected each question id once in a data set, found {question.id!r} of "
                f"{question.dataset!r} as {places[name]} and as {place}; change one id or "
                "rename one file"
            )
        places[name] = place
        found.append(question)
    return found


def select_questions(
    questions: Sequence[Question], fits: Callable[[Question], int], least: int, most: int
) -> tuple[list[Question], int]:
    """Keep questions whose prompt has `least` to `most` tokens, both included, in their order.

    `fits` returns a prompt's length in tokens. Returns the kept and how many were left out.
    """
    if least > most:
        raise UsageError(
            f"expected bounds of the prompt length from low to high, found {least} to {most} "
            "tokens; change one of them"
        )
    kept = [question for question in questions if least <= fits(question) <= most]
    return kept, len(questions) - len(kept)


def _placed(paths: Sequence[Path], corpus: Path | None) -> Iterator[tuple[str, Question]]:
    for path in paths:
        for number, question in enumerate(load_questions(path, corpus), 1):
            yield f"question {number} of {path}", question


def _parse(where: str, line: str, corpus: Path | None) -> Question:
    values = _object(where, line)
    if NEEDLE_FIELDS & values.keys() and not OWN_FIELDS & values.keys():
        return _needle_question(where, values)
    answers = _texts(where, values, "answers")
    documents = _field(where, values, "documents", list)
    return Question(
        id=str(_field(where, values, "id", str, int)),
        question=_field(where, values, "question", str),
        answers=answers,
        documents=tuple(_document(where, entry, corpus) for entry in documents),
        source=str(values.get("source", "")),
    )


def _needle_question(where: str, values: dict[str, Any]) -> Question:
    index = _field(where, values, "index", int, str)
    answers = _texts(where, values, "outputs")
    parts = needles.split_needle(where, _field(where, values, "input", str))
    return Question(
        id=f"needle-{index}",
        question=parts.question,
        answers=answers,
        documents=parts.documents,
        source="RULER niah",
        metric="contains",
        answer_tokens=needles.ANSWER_TOKENS,
    )


def _object(where: str, line: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
        json.dumps(values, ensure_ascii=False).encode()  # a lone surrogate is no text
    except (ValueError, RecursionError) as problem:
        raise UsageError(f"{where}: expected a JSON object, found {problem}") from problem
    if not isinstance(values, dict):
        raise UsageError(f"{where}: expected a JSON object, found {type(values).__name__}")
    return values


def _field(where: str, values: dict[str, Any], name: str, *kinds: type) -> Any:
    if name not in values:
        raise UsageError(f"{where}: field '{name}' is missing; found {', '.join(sorted(values))}")
    if not isinstance(values[name], kinds):
        wanted = " or ".join(_KIND_NAMES[kind] for kind in kinds)
        found = type(values[name]).__name__
        raise UsageError(f"{where}: field '{name}' has type {found}; give a {wanted}")
    return values[name]


def _texts(where: str, values: dict[str, Any], name: str) -> tuple[str, ...]:
    found = _field(where, values, name, list)
    if not found or not all(isinstance(text, str) for text in found):
        raise UsageError(f"{where}: expected '{name}' as texts, at least one, found {found!r}")
    return tuple(found)


def document_text(path: Path) -> str:
    """Return a file's text as the corpus readers do: a byte order mark goes, line ends stay.

    Otherwise its key would be another one. Raises UsageError for a file that is no text.
    """
    try:
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"document {path} cannot be read: {problem}; give text files") from problem


def _text_of(where: str, path: Path) -> str:
    try:
        return document_text(path)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


def _document(where: str, entry: Any, corpus: Path | None) -> str:
    if isinstance(entry, dict) and isinstance(entry.get("text"), str):
        title = entry.get("title") or ""
        return f"{title}\n{entry['text']}" if title else str(entry["text"])
    if isinstance(entry, str) and corpus is not None:
        path = corpus / entry
        if resolved(path).is_relative_to(resolved(corpus)) and is_regular(path):
            return _text_of(where, path)
        raise UsageError(f"{where}: document {entry!r} is not a file of {corpus}")
    raise UsageError(
        f"{where}: expected 'documents' as objects with a 'text', found {str(entry)[:60]!r}; "
        "names of files need --corpus"
    )
