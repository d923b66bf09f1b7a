"""Running an evaluation: every question through every method, against the same dense answers.

KL and top-1 follow one definition: the dense model's greedy answer of at most 32 tokens, teacher-
forced through both, averaged over its tokens (DESIGN section 9).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from sift_index.errors import UsageError
from sift_index.evaluation.forcing import prefilled
from sift_index.evaluation.methods import Method, make_methods
from sift_index.evaluation.metrics import PromptScore, answer_nll, divergence
from sift_index.evaluation.questions import Question
from sift_index.models.loading import LoadedModel
from sift_index.prompts import PromptWriter
from sift_index.runtime.index import SiftIndex
from sift_index.runtime.plan import PromptPlan

ANSWER_TOKENS = 32
METHODS = ("dense", "sift", "paper", "no-cross")


@dataclass
class EvalReport:
    """Scores per method, one per prompt in the same order; `tokens` are prompt lengths."""

    scores: dict[str, list[PromptScore]] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    hits: int = 0
    misses: int = 0


@dataclass(frozen=True)
class _Dense:
    """What a dense prefill said: its greedy answer, logits for it, and the gold answer's NLL."""

    greedy: list[int]
    logits: torch.Tensor
    nll: float


def evaluate(
    loaded: LoadedModel,
    index: SiftIndex,
    questions: Sequence[Question],
    methods: Sequence[str] = METHODS,
    progress: Callable[[int], None] = lambda done: None,
) -> EvalReport:
    """Score each method on each question; `progress` is told how many questions are done."""
    writer = index.writer(loaded)
    chosen = make_methods(methods, loaded, index)
    report = EvalReport({name: [] for name in chosen})
    for number, question in enumerate(questions, 1):
        _score_question(loaded, writer, question, chosen, report)
        progress(number)
    return report


def _score_question(
    loaded: LoadedModel,
    writer: PromptWriter,
    question: Question,
    methods: dict[str, Method],
    report: EvalReport,
) -> None:
    prompt = writer.prompt(question.documents, question.question)
    gold = _answer_ids(writer, question)
    ids = torch.tensor([[i for part in prompt for i in part.ids]], device=loaded.device)
    _check_length(ids, gold, loaded, question)
    with prefilled(loaded.model, ids, None) as opened:
        greedy = opened.greedy(ANSWER_TOKENS)
        dense = _Dense(greedy, opened.forced(greedy), answer_nll(opened.forced(gold), gold))
    for name, method in methods.items():
        plan = method(prompt)
        if name == "sift" and plan is not None:
            report.hits += plan.hits
            report.misses += plan.misses
        report.scores[name].append(_score(loaded, ids, plan, dense, gold))
    report.tokens.append(ids.shape[1])


def _score(
    loaded: LoadedModel,
    ids: torch.Tensor,
    plan: PromptPlan | None,
    dense: _Dense,
    gold: list[int],
) -> PromptScore:
    if plan is None:
        return PromptScore(0.0, 1.0, dense.nll, 1.0, 1.0, 1.0)
    with prefilled(loaded.model, ids, plan) as opened:
        kl, top1 = divergence(dense.logits, opened.forced(dense.greedy))
        nll = answer_nll(opened.forced(gold), gold)
    density = plan.density
    return PromptScore(kl, top1, nll, density.total.share, density.la.share, density.ca.share)


def _answer_ids(writer: PromptWriter, question: Question) -> list[int]:
    ids: list[int] = writer.tokenizer(question.answers[0], add_special_tokens=False).input_ids
    if not ids:
        raise UsageError(f"question {question.id}: expected a first answer with text, found none")
    return ids


def _check_length(
    ids: torch.Tensor, gold: list[int], loaded: LoadedModel, question: Question
) -> None:
    needed = ids.shape[1] + max(len(gold), ANSWER_TOKENS)
    if needed > loaded.geometry.context:
        raise UsageError(
            f"question {question.id}: expected at most {loaded.geometry.context} tokens (the "
            f"model's context), found {needed} with the answer; use fewer documents"
        )
