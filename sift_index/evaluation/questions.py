"""Questions with their documents: one JSON object a line, validated line by line.

Fields: id, question, answers (list of texts), documents, source (optional). A document is an
object {"doc_id", "title", "text"} or, for the packaged examples, the name of a corpus file.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sift_index import configs
from sift_index.errors import UsageError


@dataclass(frozen=True)
class Question:
    """One prompt to evaluate: `documents` are full texts in prompt order."""

    id: str
    question: str
    answers: tuple[str, ...]
    documents: tuple[str, ...]
    source: str = ""


def example_corpus() -> Path:
    """Return the folder of the packaged example corpus."""
    return configs.resource("examples", "corpus")


def example_questions() -> list[Question]:
    """Return the packaged questions about the example corpus."""
    return load_questions(configs.resource("examples", "questions.jsonl"), example_corpus())


def load_questions(path: Path, corpus: Path | None = None) -> list[Question]:
    """Read a questions file; UsageError names the line and the field that is missing or wrong."""
    try:
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"questions file {path} cannot be read: {problem}") from problem
    found = [
        _parse(f"{path.name} line {number}", line, corpus)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not found:
        raise UsageError(f"expected questions in {path}, found none")
    return found


def _parse(where: str, line: str, corpus: Path | None) -> Question:
    try:
        values = json.loads(line)
        json.dumps(values, ensure_ascii=False).encode()  # a lone surrogate is no text
    except (ValueError, RecursionError) as problem:
        raise UsageError(f"{where}: expected a JSON object, found {problem}") from problem
    if not isinstance(values, dict):
        raise UsageError(f"{where}: expected a JSON object, found {type(values).__name__}")
    answers = _field(where, values, "answers", list)
    documents = _field(where, values, "documents", list)
    if not answers or not all(isinstance(answer, str) for answer in answers):
        raise UsageError(f"{where}: expected 'answers' as texts, at least one, found {answers!r}")
    return Question(
        id=str(_field(where, values, "id", (str, int))),
        question=_field(where, values, "question", str),
        answers=tuple(answers),
        documents=tuple(_document(where, entry, corpus) for entry in documents),
        source=str(values.get("source", "")),
    )


def _field(where: str, values: dict[str, Any], name: str, kind: Any) -> Any:
    if name not in values:
        raise UsageError(f"{where}: field '{name}' is missing; found {', '.join(sorted(values))}")
    if not isinstance(values[name], kind):
        raise UsageError(f"{where}: field '{name}' has type {type(values[name]).__name__}")
    return values[name]


def _text_of(where: str, path: Path) -> str:
    try:
        # As the corpus readers do: a byte order mark goes, line ends stay, or the key differs.
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"{where}: document {path} cannot be read: {problem}") from problem


def _document(where: str, entry: Any, corpus: Path | None) -> str:
    if isinstance(entry, dict) and isinstance(entry.get("text"), str):
        title = entry.get("title") or ""
        return f"{title}\n{entry['text']}" if title else str(entry["text"])
    if isinstance(entry, str) and corpus is not None:
        path = corpus / entry
        if path.resolve().is_relative_to(corpus.resolve()) and path.is_file():
            return _text_of(where, path)
        raise UsageError(f"{where}: document {entry!r} is not a file of {corpus}")
    raise UsageError(
        f"{where}: expected 'documents' as objects with a 'text', found {str(entry)[:60]!r}; "
        "names of files need --corpus"
    )
