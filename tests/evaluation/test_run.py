"""Evaluation of the tiny model over a small hand-made index, against naive masks."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sift_index.adapters.hf_calls import stop_tokens
from sift_index.errors import UsageError
from sift_index.evaluation.forcing import prefilled
from sift_index.evaluation.methods import make_methods, without_cross_attention
from sift_index.evaluation.metrics import PromptScore, answer_nll, divergence
from sift_index.evaluation.questions import Question
from sift_index.evaluation.run import METHODS, evaluate
from sift_index.prompts import PromptWriter
from sift_index.runtime.index import SiftIndex
from sift_index.selection.extractor import Extractor
from sift_index.selection.policy import PaperPolicy
from tests.attention import eager_logits
from tests.kernels.naive import naive_mask
from tests.plans import TEMPLATE, compose, layout_of, loaded, tiny, write_index

MODEL = loaded(tiny("llama"))
LAYOUT = layout_of(MODEL.model)
TEXTS = [
    (f"Document {n} tells of mill {n}. " * 30)[:length] for n, length in enumerate((150, 330, 90))
]
QUESTIONS = [
    Question("one", "Which mill?", ("the tide mill", "mill"), tuple(TEXTS)),
    Question("two", "Why?", ("x",), (TEXTS[1], "not indexed " * 9, TEXTS[0])),
]
WRITER = PromptWriter(MODEL.tokenizer, TEMPLATE)


def open_index(root, kind: str) -> SiftIndex:
    documents = {text[:12]: [WRITER.document(text)] for text in TEXTS}
    path = write_index(root / kind, MODEL, LAYOUT, documents, kind)
    return SiftIndex.open(path, MODEL.model, MODEL.tokenizer)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return open_index(tmp_path_factory.mktemp("evaluation"), "random")


@pytest.fixture(scope="module")
def report(index):
    return evaluate(MODEL, index, QUESTIONS)


def prompt_ids(question: Question) -> list[int]:
    parts = WRITER.prompt(question.documents, question.question)
    return [i for part in parts for i in part.ids]


def dense_answer(ids: list[int]) -> list[int]:
    """Return the greedy answer by running the whole text again for every token."""
    answer: list[int] = []
    while len(answer) < 32 and not (answer and answer[-1] in stop_tokens(MODEL.model)):
        answer.append(int(eager_logits(MODEL.model, [*ids, *answer])[-1].argmax()))
    return answer


def expected_score(question: Question, plan) -> PromptScore:
    """Score a plan with naive masks over prompt and answer: rows of the answer are dense."""
    ids = prompt_ids(question)
    greedy = dense_answer(ids)
    gold = MODEL.tokenizer(question.answers[0]).input_ids

    def logits(answer: list[int], masked: bool) -> torch.Tensor:
        full = [*ids, *answer[:-1]]
        longer = replace(plan.sparse, length=len(full))
        masks = [naive_mask(longer, layer) for layer in range(2)] if masked else None
        return eager_logits(MODEL.model, full, masks)[len(ids) - 1 :]

    kl, top1 = divergence(logits(greedy, False), logits(greedy, True))
    nll = answer_nll(logits(gold, True), gold)
    density = plan.density
    return PromptScore(kl, top1, nll, density.total.share, density.la.share, density.ca.share)


def assert_same(found: PromptScore, expected: PromptScore) -> None:
    assert found.kl == pytest.approx(expected.kl, abs=1e-8, rel=1e-2)
    assert found.nll == pytest.approx(expected.nll, abs=1e-5)
    assert replace(found, kl=0, nll=0) == replace(expected, kl=0, nll=0)


def test_every_method_scores_every_prompt(report):
    assert list(report.scores) == list(METHODS)
    assert all(len(scores) == 2 for scores in report.scores.values())
    assert report.tokens == [len(prompt_ids(question)) for question in QUESTIONS]


def test_hits_and_misses_are_those_of_the_index(report):
    assert (report.hits, report.misses) == (5, 1)


def test_dense_is_exactly_itself(report):
    for question, score in zip(QUESTIONS, report.scores["dense"], strict=True):
        gold = MODEL.tokenizer(question.answers[0]).input_ids
        logits = eager_logits(MODEL.model, [*prompt_ids(question), *gold[:-1]])
        nll = answer_nll(logits[len(prompt_ids(question)) - 1 :], gold)
        assert score.nll == pytest.approx(nll, abs=1e-5)
        assert replace(score, nll=0.0) == PromptScore(0.0, 1.0, 0.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize("number", [0, 1])
def test_sift_is_the_naive_mask(report, index, number):
    question = QUESTIONS[number]
    plan = index.compose(WRITER.prompt(question.documents, question.question))
    expected = expected_score(question, plan)
    assert expected.kl > 1e-4  # random weights hardly look at their context
    assert_same(report.scores["sift"][number], expected)


def test_sift_with_all_bits_on_is_dense(tmp_path):
    report = evaluate(MODEL, open_index(tmp_path, "on"), QUESTIONS, ("dense", "sift"))
    for dense, sift in zip(report.scores["dense"], report.scores["sift"], strict=True):
        assert sift.kl < 1e-6
        assert sift.nll == pytest.approx(dense.nll, abs=1e-4)
        assert replace(sift, kl=0.0, nll=dense.nll) == dense


def test_no_cross_is_a_mask_without_cells_between_documents(report, index):
    question = QUESTIONS[0]
    plan = without_cross_attention(
        index.compose(WRITER.prompt(question.documents, question.question))
    )
    length, spans = plan.length, plan.sparse.spans
    mask = np.tri(length, dtype=bool)
    for i, span in enumerate(spans):
        for earlier in spans[:i]:
            mask[span.start : span.stop, earlier.start : earlier.stop] = False
    assert len(spans) == 3
    for layer in range(2):
        assert (naive_mask(plan.sparse, layer) == mask).all()
    score = report.scores["no-cross"][0]
    assert_same(score, expected_score(question, plan))
    assert (score.ca_density, score.la_density) == (0.0, 1.0)
    assert score.density == pytest.approx(mask.sum() / (length * (length + 1) / 2))


def test_paper_extracts_the_documents_alone(report):
    question = QUESTIONS[1]  # also one that no index holds: the method brings its own masks
    extractor = Extractor(MODEL, PaperPolicy(), [])
    parts = WRITER.prompt(question.documents, question.question)
    masks = [extractor.extract(part.ids) for part in parts[1:-1]]
    plan = compose(MODEL.model, extractor.layout, parts, masks)
    assert plan.hits == 3
    assert_same(report.scores["paper"][1], expected_score(question, plan))


def test_paper_composes_repeated_documents_from_one_extraction(index):
    method = make_methods(["paper"], MODEL, index)["paper"]
    parts = WRITER.prompt([TEXTS[0], TEXTS[0]], "?")
    plan = method(parts)
    assert plan is not None
    assert plan.hits == 2
    assert plan.sparse.spans[0].ca.data_ptr() == plan.sparse.spans[1].ca.data_ptr()


def test_progress_counts_questions(index):
    seen: list[int] = []
    evaluate(MODEL, index, QUESTIONS, ("dense",), seen.append)
    assert seen == [1, 2]


def test_an_unknown_method_is_refused_before_anything_runs(index):
    with pytest.raises(UsageError, match="methods of dense, sift, paper, no-cross, found magic"):
        evaluate(MODEL, index, QUESTIONS, ("dense", "magic"))


def test_a_prompt_that_does_not_fit_the_context_is_refused_by_id(tmp_path):
    small = loaded(tiny("llama", max_position_embeddings=300))
    documents = {"a": [WRITER.document(TEXTS[0])]}
    index = SiftIndex.open(write_index(tmp_path / "i", small, LAYOUT, documents), small.model)
    message = r"question one: expected at most 300 tokens \(the model's context\), found \d+"
    with pytest.raises(UsageError, match=message):
        evaluate(small, index, QUESTIONS, ("dense",))


@pytest.mark.parametrize("room", [31, 32])
def test_the_answer_counts_towards_the_context(tmp_path, room):
    small = loaded(tiny("llama", max_position_embeddings=len(prompt_ids(QUESTIONS[1])) + room))
    documents = {"a": [WRITER.document(TEXTS[0])]}
    index = SiftIndex.open(write_index(tmp_path / "i", small, LAYOUT, documents), small.model)
    if room == 32:
        assert len(evaluate(small, index, QUESTIONS[1:], ("dense",)).tokens) == 1
        return
    with pytest.raises(UsageError, match="question two: expected at most"):
        evaluate(small, index, QUESTIONS[1:], ("dense",))


def test_an_empty_first_answer_is_refused_by_id(index):
    question = replace(QUESTIONS[0], answers=("",))
    with pytest.raises(UsageError, match="question one: expected a first answer with text"):
        evaluate(MODEL, index, [question], ("dense",))


def test_answers_of_any_length_leave_the_prefilled_prompt_as_it_was():
    ids = prompt_ids(QUESTIONS[0])
    with prefilled(MODEL.model, torch.tensor([ids]), None) as opened:
        greedy = opened.greedy(9)
        for answer in (greedy, [5], [7, 8, 9], greedy):
            expected = eager_logits(MODEL.model, [*ids, *answer[:-1]])[len(ids) - 1 :]
            torch.testing.assert_close(opened.forced(answer), expected, atol=1e-3, rtol=1e-3)
        assert opened.greedy(9) == greedy == dense_answer(ids)[:9]


def test_greedy_stops_behind_the_stop_token():
    ids = prompt_ids(QUESTIONS[0])
    free = dense_answer(ids)
    model = tiny("llama")
    model.generation_config.eos_token_id = [free[2], 300]
    with prefilled(model, torch.tensor([ids]), None) as opened:
        assert opened.greedy(32) == free[: free.index(free[2]) + 1]
