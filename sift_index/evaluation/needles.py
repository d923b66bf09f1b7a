"""RULER's needle-in-a-haystack texts (arXiv 2404.06654), cut into documents and a question.

RULER writes a whole prompt as one text: a header line, haystack lines with the needles among
them, and a question line. An index holds documents, so the haystack becomes several of them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sift_index.errors import UsageError

DOCUMENTS = 8
# A UUID takes about 36 tokens, and the model may say something before it.
ANSWER_TOKENS = 64

_QUESTION = re.compile(r"What (is|are) .*special magic .*mentioned in the provided text\?")


@dataclass(frozen=True)
class NeedleText:
    """A needle prompt in parts: `documents` in prompt order, then `question`."""

    documents: tuple[str, ...]
    question: str


def split_needle(where: str, text: str, documents: int = DOCUMENTS) -> NeedleText:
    """Cut a needle prompt at line borders into about equally long documents and its question.

    The header stays in front of the first document; blank lines are dropped. There are fewer
    documents where lines are few or long. Raises UsageError, which begins with `where`.
    """
    lines = [line.strip("\r") for line in text.split("\n") if line.strip()]
    if len(lines) < 3:
        raise UsageError(
            f"{where}: expected field 'input' with a header line, haystack lines and a question "
            f"line, found {len(lines)} lines; give the text as RULER's niah generator wrote it"
        )
    question = lines[-1].strip()
    if not _QUESTION.match(question):
        raise UsageError(
            f"{where}: expected field 'input' to end in a line 'What is the special magic … "
            f"mentioned in the provided text?', found {question[:60]!r}; give the text as "
            "RULER's niah generator wrote it"
        )
    header_and_first = "\n".join(lines[:2])
    return NeedleText(_cut([header_and_first, *lines[2:-1]], documents), question)


def _cut(lines: Sequence[str], documents: int) -> tuple[str, ...]:
    total = sum(len(line) + 1 for line in lines)
    groups: list[list[str]] = [[] for _ in range(documents)]
    start = 0
    for line in lines:
        middle = start + len(line) / 2
        groups[int(middle * documents / total)].append(line)
        start += len(line) + 1
    return tuple("\n".join(group) for group in groups if group)
