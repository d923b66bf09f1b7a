"""Running an evaluation: every question through every method, against the same dense answers.

KL and top-1 follow one definition: the dense model's greedy answer of at most 32 tokens, teacher-
forced through both, averaged over its tokens (DESIGN section 9).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import torch

from sift_index.adapters.hf_attention import attention_handler
from sift_index.errors import UsageError
from sift_index.evaluation.answers import score_answer
from sift_index.evaluation.forcing import PrefilledPrompt, prefilled
from sift_index.evaluation.ledger import Ledger, Scored
from sift_index.evaluation.methods.registry import Setting, make_methods
from sift_index.evaluation.methods.treatment import Dense, Method, Treatment, spans_of
from sift_index.evaluation.metrics import PromptScore, answer_nll, divergence
from sift_index.evaluation.questions import Question
from sift_index.evaluation.recall import MassObserver, Recall
from sift_index.formats.canonical import digest
from sift_index.formats.identity import document_key
from sift_index.kernels.api import SparsePlan
from sift_index.models.loading import LoadedModel
from sift_index.prompts import PromptWriter, Segment, prompt_ids

ANSWER_TOKENS = 32
METHODS = ("dense", "sift", "paper", "no-cross")
Progress = Callable[[int], None]


@dataclass(frozen=True)
class EvalOptions:
    """What to measure beside KL, top-1, NLL and densities.

    generate: decode each method's own answer and score it (F1, exact match). recall: attention-mass
    recall of each plan, from one more look at the dense attention.
    """

    generate: bool = True
    recall: bool = True


@dataclass
class EvalReport:
    """Every question's scores, in the order they were asked."""

    methods: tuple[str, ...]
    asked: list[Scored] = field(default_factory=list)

    @property
    def scores(self) -> dict[str, list[PromptScore]]:
        """Scores per method, one per question."""
        return {name: [one.scores[name] for one in self.asked] for name in self.methods}

    @property
    def tokens(self) -> list[int]:
        """Prompt lengths in tokens."""
        return [one.tokens for one in self.asked]

    @property
    def hits(self) -> int:
        """Documents found in the index, over all questions."""
        return sum(one.hits for one in self.asked)

    @property
    def misses(self) -> int:
        """Documents the index does not hold as these texts."""
        return sum(one.misses for one in self.asked)

    def where(self, name: str, value: str) -> "EvalReport":
        """Return the part whose questions have `value` as `dataset` or `source`."""
        return EvalReport(self.methods, [one for one in self.asked if getattr(one, name) == value])


@dataclass(frozen=True)
class _Case:
    """One question as token ids, the gold answer's tokens, and a digest of all of it."""

    question: Question
    prompt: Sequence[Segment]
    ids: torch.Tensor
    gold: list[int]
    digest: str


@dataclass(frozen=True)
class _Dense:
    """What the dense model said: its greedy answer, logits for it, its generated answer; its score.

    `generated` may be longer than `greedy`: a question says how long its answer may be.
    """

    greedy: list[int]
    logits: torch.Tensor
    generated: list[int]
    score: PromptScore


def evaluate(
    setting: Setting,
    questions: Sequence[Question],
    methods: Sequence[str] | Mapping[str, Method] = METHODS,
    options: EvalOptions = EvalOptions(),  # noqa: B008 - frozen
    progress: Progress = lambda done: None,
    ledger: Ledger | None = None,
) -> EvalReport:
    """Score each method on each question; `progress` is told how many questions are done.

    methods: names, or methods by what results call them. Questions that `ledger` holds already are
    not run again. Raises UsageError for an unknown method and for a prompt that does not fit the
    model, before anything runs.
    """
    ledger = ledger or Ledger()
    chosen = methods if isinstance(methods, Mapping) else make_methods(methods, setting)
    cases = [_case(setting, question) for question in questions]
    runner = _Runner(setting, options)
    report = EvalReport(tuple(chosen))
    for number, case in enumerate(cases, 1):
        scored = ledger.get(case.question.dataset, case.question.id, case.digest, chosen)
        if scored is None:
            scored = runner.score(case, chosen)
            policies = {name: ledger.policies[name] for name in chosen if name in ledger.policies}
            scored = replace(scored, policies=policies)
            ledger.add(scored)
        report.asked.append(scored)
        progress(number)
    return report


class _Runner:
    """Runs one question through methods."""

    def __init__(self, setting: Setting, options: EvalOptions) -> None:
        self._setting = setting
        self._loaded = setting.loaded
        self._options = options

    def score(self, case: _Case, methods: Mapping[str, Method]) -> Scored:
        """Return one question's scores by every method."""
        treatments = {name: method(case.prompt) for name, method in methods.items()}
        dense, recalls = self._dense(case, treatments)
        scores = {
            name: _with_recall(self._score(case, treatment, dense), recalls.get(name))
            for name, treatment in treatments.items()
        }
        hits, misses = self._found(treatments)
        return Scored(
            id=case.question.id,
            dataset=case.question.dataset,
            source=case.question.source,
            prompt=case.digest,
            tokens=case.ids.shape[1],
            scores=scores,
            hits=hits,
            misses=misses,
        )

    def _found(self, treatments: Mapping[str, Treatment]) -> tuple[int, int]:
        """Return hits and misses of the index; its levels all find the same documents."""
        served = (t.plan for name, t in treatments.items() if name.partition(":")[0] == "sift")
        plan = next(served, None)
        if self._setting.index is None or plan is None:
            return 0, 0
        return plan.hits, plan.misses

    def _dense(
        self, case: _Case, treatments: Mapping[str, Treatment]
    ) -> tuple[_Dense, dict[str, Recall]]:
        plans = _plans(treatments) if self._options.recall else {}
        observer = MassObserver(list(plans.values()))
        model = self._loaded.model
        observing = attention_handler(model, observer) if plans else nullcontext()
        with self._prefilled(case, observing) as opened:
            greedy = opened.greedy(ANSWER_TOKENS)
            logits = opened.forced(greedy)
            nll = answer_nll(opened.forced(case.gold), case.gold)
            generated = self._generate(case, opened, greedy)
        score = PromptScore(0.0, 1.0, nll, 1.0, 1.0, 1.0)
        dense = _Dense(greedy, logits, generated, self._with_answer(score, case, generated))
        return dense, dict(zip(plans, observer.recalls(), strict=True))

    def _score(self, case: _Case, treatment: Treatment, dense: _Dense) -> PromptScore:
        if isinstance(treatment, Dense):
            return dense.score
        with self._prefilled(case, treatment.attention(self._loaded.model)) as opened:
            kl, top1 = divergence(dense.logits, opened.forced(dense.greedy))
            nll = answer_nll(opened.forced(case.gold), case.gold)
            generated = self._generate(case, opened, dense.generated)
        visited = treatment.density
        shares = (visited.total.share, visited.la.share, visited.ca.share)
        return self._with_answer(PromptScore(kl, top1, nll, *shares), case, generated)

    def _prefilled(
        self, case: _Case, attention: AbstractContextManager[None]
    ) -> AbstractContextManager[PrefilledPrompt]:
        return prefilled(self._loaded.model, case.ids, attention)

    def _generate(self, case: _Case, opened: PrefilledPrompt, guess: list[int]) -> list[int]:
        if not self._options.generate:
            return guess
        return opened.greedy(case.question.answer_tokens, guess)

    def _with_answer(self, score: PromptScore, case: _Case, generated: list[int]) -> PromptScore:
        if not self._options.generate:
            return score
        text = self._loaded.tokenizer.decode(generated, skip_special_tokens=True)
        found = score_answer(text, case.question)
        return replace(score, f1=found.f1, em=found.em)


def _plans(treatments: Mapping[str, Treatment]) -> dict[str, SparsePlan]:
    return {name: t.plan.sparse for name, t in treatments.items() if t.plan is not None}


def _with_recall(score: PromptScore, recall: Recall | None) -> PromptScore:
    return score if recall is None else replace(score, la_recall=recall.la, ca_recall=recall.ca)


def _case(setting: Setting, question: Question) -> _Case:
    writer, loaded = setting.writer, setting.loaded
    prompt = writer.prompt(question.documents, question.question)
    ids = torch.tensor([prompt_ids(prompt)], device=loaded.device)
    gold = _answer_ids(writer, question)
    case = _Case(question, prompt, ids, gold, _digest(prompt, question))
    _check_length(case, loaded)
    return case


def prompt_tokens(writer: PromptWriter, question: Question) -> int:
    """Return the length of a question's prompt in tokens."""
    return len(prompt_ids(writer.prompt(question.documents, question.question)))


def prompt_digest(writer: PromptWriter, question: Question) -> str:
    """Return the hex digest of what a question's scores depend on: prompt tokens and answers."""
    return _digest(writer.prompt(question.documents, question.question), question)


def _digest(prompt: Sequence[Segment], question: Question) -> str:
    places = [[start, stop] for start, stop in spans_of(prompt)]
    ids = document_key(prompt_ids(prompt)).hex()
    return digest([ids, places, list(question.answers), question.metric, question.answer_tokens])


def _answer_ids(writer: PromptWriter, question: Question) -> list[int]:
    ids: list[int] = writer.tokenizer(question.answers[0], add_special_tokens=False).input_ids
    if not ids:
        raise UsageError(f"question {question.id}: expected a first answer with text, found none")
    return ids


def _check_length(case: _Case, loaded: LoadedModel) -> None:
    longest_answer = max(len(case.gold), ANSWER_TOKENS, case.question.answer_tokens)
    needed = case.ids.shape[1] + longest_answer
    if needed > loaded.geometry.context:
        raise UsageError(
            f"question {case.question.id}: expected at most {loaded.geometry.context} tokens (the "
            f"model's context), found {needed} with the answer; use fewer documents, or leave out "
            "what does not fit with --max-tokens"
        )
