"""Scores of a generated answer against the accepted ones, as LongBench and RULER define them.

F1 and exact match follow LongBench's question answering (arXiv 2308.14508, after SQuAD): texts
are normalised, then compared as bags of tokens or as a whole, and the best accepted answer counts.
Two things differ from the published scorers, so values can differ from published ones too:
Chinese, Japanese, Korean and Thai text is scored by characters where LongBench uses a word
segmenter, and all Unicode punctuation goes, not only a list of it. "yes" and "no" are ordinary
tokens. RULER's needle answers are looked for as strings (arXiv 2404.06654).
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sift_index.errors import UsageError
from sift_index.evaluation.questions import Question

ARTICLES = frozenset({"a", "an", "the"})

_PUNCTUATION = frozenset(string.punctuation)
# Scripts written without spaces between words, and Hangul, whose words carry their particles.
_SINGLE = (
    "\u0e01-\u0e3a\u0e40-\u0e5b"  # Thai
    "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff\uffa0-\uffdc"  # Hangul
    "\u3041-\u309f\u30a0-\u30ff\u31f0-\u31ff\uff66-\uff9f\U0001aff0-\U0001b16f"  # kana
    "\u2e80-\u2fdf\u3005\u3007\u3021-\u3029\u3038-\u303b"  # Han: radicals, marks, numerals
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"  # Han
)
_TOKEN = re.compile(rf"[{_SINGLE}]|[^\s{_SINGLE}]+")


@dataclass(frozen=True)
class AnswerScore:
    """One generated answer's scores, shares from 0 to 1."""

    f1: float
    em: float


def score_answer(prediction: str, question: Question) -> AnswerScore:
    """Score a generated text by the question's metric; with `contains`, both values are that.

    The whole text counts, without white space around it: LongBench cuts at the first line, but
    for its few-shot sets only.
    """
    text = prediction.strip()
    if question.metric == "contains":
        share = contains(text, question.answers)
        return AnswerScore(share, share)
    return AnswerScore(f1(text, question.answers), exact_match(text, question.answers))


def normalise(text: str) -> str:
    """Return the text in lower case, without punctuation and articles, words one space apart.

    Punctuation is removed, not replaced: "A.P.J." is "apj". It is what Unicode calls punctuation,
    what ASCII does ("$", "+"), and the full-width forms of both.
    """
    kept = "".join(char for char in text.lower() if not _is_punctuation(char))
    return " ".join(word for word in kept.split() if word not in ARTICLES)


def f1(prediction: str, answers: Sequence[str]) -> float:
    """Return the best token F1 over the accepted answers.

    Two texts without any token are equal (1), one without tokens shares nothing (0).
    """
    found = _tokens(prediction)
    return max(_overlap(found, _tokens(answer)) for answer in _some(answers))


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """Return 1 if the prediction has the same tokens in the same order as any answer, else 0."""
    found = _tokens(prediction)
    return float(any(found == _tokens(answer) for answer in _some(answers)))


def contains(prediction: str, answers: Sequence[str]) -> float:
    """Return the share of the reference strings found in the prediction, ignoring case.

    Every reference counts, unlike the alternatives of `f1`; nothing else is normalised. An empty
    reference is found in an empty prediction only.
    """
    text = prediction.lower()
    hits = [answer.lower() in text if answer else not text for answer in _some(answers)]
    return sum(hits) / len(hits)


def _is_punctuation(char: str) -> bool:
    if unicodedata.category(char).startswith("P"):
        return True
    return unicodedata.normalize("NFKC", char) in _PUNCTUATION


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(normalise(text))


def _overlap(found: Sequence[str], expected: Sequence[str]) -> float:
    if not found or not expected:
        return float(not found and not expected)
    common = (Counter(found) & Counter(expected)).total()
    # 2PR / (P + R) with P = common / len(found) and R = common / len(expected).
    return 2 * common / (len(found) + len(expected))


def _some(answers: Sequence[str]) -> Sequence[str]:
    if not answers:
        raise UsageError("expected at least one accepted answer, found none; give one to score by")
    return answers
