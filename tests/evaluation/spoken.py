"""A tiny model that writes letters, prompts for it, and what full attention makes of them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sift_index.adapters.hf_calls import stop_tokens
from sift_index.evaluation.questions import Question
from sift_index.evaluation.recall import Recall
from sift_index.kernels.api import SparsePlan
from sift_index.models.loading import LoadedModel
from sift_index.prompts import PromptWriter
from sift_index.runtime.index import SiftIndex
from tests.attention import eager_logits
from tests.kernels.naive import naive_mask
from tests.plans import TEMPLATE, layout_of, loaded, tiny, write_index
from tests.selection.observed import observe

ANSWER_TOKENS = 32
TEXTS = [
    (f"Document {n} tells of mill {n}. " * 30)[:length] for n, length in enumerate((140, 270, 70))
]
UNKNOWN = "not indexed " * 5


def speaking(**overrides) -> LoadedModel:
    """Return a model whose every token is one of a few letters or a space, and no two alike."""
    model = loaded(tiny("llama", **overrides))
    silent = torch.ones(320, dtype=torch.bool)
    silent[model.tokenizer(" abcdefgh").input_ids] = False
    with torch.no_grad():
        model.model.lm_head.weight.mul_(20.0)  # far apart, so that a changed context is heard
        model.model.lm_head.weight[silent] = 0.0
    return model


MODEL = speaking()
LAYOUT = layout_of(MODEL.model)
WRITER = PromptWriter(MODEL.tokenizer, TEMPLATE)


def open_index(root: Path, kind: str) -> SiftIndex:
    """Return an index of all TEXTS with bits that are `on`, `off` or `random`."""
    documents = {text[:12]: [WRITER.document(text)] for text in TEXTS}
    path = write_index(root / kind, MODEL, LAYOUT, documents, kind)
    return SiftIndex.open(path, MODEL.model, MODEL.tokenizer)


def text_of(answer: Sequence[int]) -> str:
    text: str = MODEL.tokenizer.decode(answer, skip_special_tokens=True)
    return text


@cache
def questions() -> tuple[Question, Question]:
    """Return two questions whose answers are near to what the dense model says.

    One may have fewer tokens than the answer that KL is over, one more.
    """
    one = Question("one", "Which mill?", ("",), tuple(TEXTS), "hop", "mills", "f1", 27)
    two = Question("two", "Why?", ("",), (TEXTS[1], UNKNOWN, TEXTS[0]), "", "whys", "contains", 40)
    spoken = [text_of(greedy(prompt_ids(q), q.answer_tokens)) for q in (one, two)]
    words = spoken[0].split()
    return (
        replace(one, answers=(f"{words[0]} mill", " ".join(words))),
        replace(two, answers=(spoken[1][:3], spoken[1][-6:], "the tide mill")),
    )


def prompt_ids(question: Question) -> tuple[int, ...]:
    parts = WRITER.prompt(question.documents, question.question)
    return tuple(i for part in parts for i in part.ids)


def full_logits(ids: Sequence[int], plan: SparsePlan | None) -> torch.Tensor:
    """Return logits [L, vocabulary] under naive masks; rows behind the prompt are dense."""
    if plan is None:
        return eager_logits(MODEL.model, ids)
    masks = [mask[:, : len(ids), : len(ids)] for mask in _masks(plan)]
    return eager_logits(MODEL.model, ids, masks)


@cache
def greedy(ids: tuple[int, ...], most: int, plan: SparsePlan | None = None) -> list[int]:
    """Return the greedy answer by running the whole text again for every token."""
    answer: list[int] = []
    while len(answer) < most and not (answer and answer[-1] in stop_tokens(MODEL.model)):
        answer.append(int(full_logits([*ids, *answer], plan)[-1].argmax()))
    return answer


def expected_recall(ids: Sequence[int], plan: SparsePlan, model: Any = MODEL.model) -> Recall:
    """Sum full float64 probabilities in the places of naive masks, over rows of documents."""
    seen = observe(model, ids)
    p = np.stack([seen.probabilities(layer) for layer in range(2)])
    visited = np.stack([naive_mask(plan, layer) for layer in range(2)])
    owner = np.full(len(ids), -1)
    for number, span in enumerate(plan.spans):
        owner[span.start : span.stop] = number
    rows, keys = owner[:, None], owner[None, :]
    places = (rows == keys) & (keys >= 0), (rows > keys) & (keys >= 0)
    wholes = [(p * place).sum() for place in places]
    parts = [(p * place * visited).sum() for place in places]
    found = [float(p / w) if w else 1.0 for p, w in zip(parts, wholes, strict=True)]
    return Recall(*found)


@cache
def _masks(plan: SparsePlan) -> list[np.ndarray]:
    """Return each layer's mask of the prompt and an answer, written down once."""
    longer = replace(plan, length=plan.length + 64)
    return [naive_mask(longer, layer) for layer in range(2)]
