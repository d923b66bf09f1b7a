"""Prompts to tune on: some of the questions given, or ones made from a corpus.

A made prompt quotes how a sentence of one of its documents begins and asks what follows: something
a model answers from that document, among others. What is compared in the end is the dense model's
own answer, so a made question needs no better than that.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from sift_index.errors import UsageError
from sift_index.evaluation.questions import Question
from sift_index.prompts import PromptWriter

MIN_PROMPTS = 4
MAX_TOKENS = 6000
RESERVED = 64  # tokens of the context that stay free for the answer
MAX_DOCUMENTS = 512  # that are read of a corpus: more than a few prompts can hold
ASKED = 'Which words follow "{quote}" in the passages?'

_BREAKS = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\s*\n\s*")
_QUOTED, _WANTED = 8, 16

T = TypeVar("T")


def token_budget(context: int, most: int | None = None) -> int:
    """Return the longest prompt in tokens: `most` (default 6,000), or what the context leaves."""
    return min(most or MAX_TOKENS, context - RESERVED)


def sample_of(items: Iterable[T], most: int, seed: int = 0) -> list[T]:
    """Return up to `most` items in their order, each as likely as the others, in one pass."""
    generator = random.Random(seed)
    kept: list[tuple[int, T]] = []
    for number, item in enumerate(items):
        if number < most:
            kept.append((number, item))
        elif (place := generator.randrange(number + 1)) < most:
            kept[place] = (number, item)
    return [item for _, item in sorted(kept, key=lambda pair: pair[0])]


def choose_questions(
    questions: Sequence[Question],
    tokens: Callable[[Question], int],
    count: int,
    budget: int,
    seed: int = 0,
) -> list[Question]:
    """Return up to `count` questions of two or more documents, in their order.

    tokens: length of a question's prompt, which may be up to `budget`. Raises UsageError when
    fewer than `MIN_PROMPTS` can be used.
    """
    _require_count(count)
    order = random.Random(seed).sample(range(len(questions)), len(questions))
    usable = (i for i in order if _crossing(questions[i]) and tokens(questions[i]) <= budget)
    chosen = [questions[i] for i in sorted(islice(usable, count))]
    if len(chosen) < MIN_PROMPTS:
        few = sum(not _crossing(question) for question in questions)
        raise _too_small(
            len(chosen),
            f"of {len(questions)} questions, {few} have fewer than two documents and "
            f"{len(questions) - few - len(chosen)} prompts are longer than {budget} tokens",
            "give more questions, or raise --max-tokens",
        )
    return chosen


def make_questions(
    texts: Sequence[str], writer: PromptWriter, count: int, budget: int, seed: int = 0
) -> list[Question]:
    """Return up to `count` questions, each with as many documents as fit into `budget` tokens.

    Texts of more than a third of the budget are cut; no prompt comes twice. The same texts and
    seed give the same questions. Raises UsageError when fewer than `MIN_PROMPTS` can be made.
    """
    _require_count(count)
    kept = list(dict.fromkeys(text for text in texts if text.strip()))
    maker = _Maker(kept, writer, budget, random.Random(seed))
    found: dict[tuple[str, ...], Question] = {}
    for _ in range(4 * count):
        if len(found) < count and (made := maker.question(len(found))) is not None:
            found.setdefault((made.question, *made.documents), made)
    if len(found) < MIN_PROMPTS:
        raise _too_small(
            len(found),
            f"made of {len(kept)} different documents in prompts of up to {budget} tokens",
            "give a larger corpus, or raise --max-tokens",
        )
    return list(found.values())


def _crossing(question: Question) -> bool:
    return len(question.documents) > 1


def _require_count(count: int) -> None:
    if count < MIN_PROMPTS:
        raise UsageError(
            f"expected at least {MIN_PROMPTS} prompts to tune on, found {count} asked for; raise "
            "--prompts"
        )


def _too_small(found: int, why: str, todo: str) -> UsageError:
    return UsageError(
        f"expected at least {MIN_PROMPTS} prompts of two or more documents to tune on, found "
        f"{found} ({why}); {todo}"
    )


@dataclass
class _Maker:
    """Makes one question after another."""

    texts: Sequence[str]
    writer: PromptWriter
    budget: int
    generator: random.Random
    _known: dict[int, tuple[str, int]] = field(default_factory=dict)

    def question(self, number: int) -> Question | None:
        """Return a question, or None where no passage can be quoted or too little fits."""
        order = self.generator.sample(range(len(self.texts)), len(self.texts))
        passage = quoted(self._document(order[0])[0], self.generator) if order else None
        if passage is None:
            return None
        asked = ASKED.format(quote=passage[0])
        chosen = list(self._fitting(order, len(self.writer.query(asked))))
        if len(chosen) < 2:
            return None
        self.generator.shuffle(chosen)
        return Question(f"made-{number}", asked, (passage[1],), tuple(chosen), source="made")

    def _fitting(self, order: Sequence[int], query: int) -> Iterator[str]:
        """Yield documents in order while prefix, documents and query fit the budget."""
        room = self.budget - query - len(self.writer.prefix())
        for i in order:
            text, tokens = self._document(i)
            room -= tokens
            if room < 0:
                return
            yield text

    def _document(self, i: int) -> tuple[str, int]:
        """Return a text and its tokens, cut so that two of them and a question fit."""
        if i not in self._known:
            # Far more than fits is not worth tokenising.
            text, most = self.texts[i][: 8 * self.budget], max(1, self.budget // 3)
            while (tokens := len(self.writer.document(text))) > most and len(text) > 1:
                text = text[: len(text) * most // tokens]
            self._known[i] = text, tokens
        return self._known[i]


def quoted(text: str, generator: random.Random) -> tuple[str, str] | None:
    """Return how a sentence or line of a text begins, and how it goes on; None if all are short.

    Both are counted in words; in characters where nothing has words enough, as in Chinese.
    """
    passages = [passage for passage in _BREAKS.split(text) if passage]
    words, letters = [p.split() for p in passages], [list(p) for p in passages]
    for units, joint, least in ((words, " ", 6), (letters, "", 12)):
        if long := [part for part in units if len(part) >= least]:
            part = generator.choice(long)
            cut = min(_QUOTED, len(part) // 2)
            return joint.join(part[:cut]), joint.join(part[cut : cut + _WANTED])
    return None
