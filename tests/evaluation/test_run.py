"""Evaluation of a tiny model, with an index and without, against naive masks and full attention."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sift_index.errors import UsageError
from sift_index.evaluation.answers import score_answer
from sift_index.evaluation.methods.registry import Setting, make_methods
from sift_index.evaluation.methods.treatment import spans_of
from sift_index.evaluation.metrics import PromptScore, answer_nll, divergence
from sift_index.evaluation.questions import Question
from sift_index.evaluation.run import METHODS, EvalOptions, evaluate, prompt_tokens
from sift_index.kernels.api import SparsePlan
from sift_index.runtime.index import SiftIndex
from sift_index.selection.extractor import Extractor
from sift_index.selection.policy import PaperPolicy, Policy, ProbePolicy, load_policy
from tests.evaluation.methods.partial import Partial
from tests.evaluation.spoken import (
    ANSWER_TOKENS,
    LAYOUT,
    MODEL,
    TEXTS,
    WRITER,
    expected_recall,
    full_logits,
    greedy,
    open_index,
    prompt_ids,
    questions,
    speaking,
    text_of,
)
from tests.kernels.naive import naive_mask
from tests.plans import compose, write_index
from tests.selection.observed import write_probes

KL_AND_MORE_ONLY = EvalOptions(generate=False, recall=False)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return open_index(tmp_path_factory.mktemp("evaluation"), "random")


@pytest.fixture(scope="module")
def report(index):
    return evaluate(Setting(MODEL, index), questions())


def gold_of(question: Question) -> list[int]:
    return MODEL.tokenizer(question.answers[0]).input_ids


def answered(score: PromptScore, question: Question, answer: list[int]) -> PromptScore:
    found = score_answer(text_of(answer), question)
    return replace(score, f1=found.f1, em=found.em)


def expected_score(question: Question, plan: SparsePlan) -> PromptScore:
    """Score a plan with naive masks over prompt and answer: rows of the answer are dense."""
    ids, gold = prompt_ids(question), gold_of(question)

    def logits(answer: list[int], plan: SparsePlan | None) -> torch.Tensor:
        return full_logits([*ids, *answer[:-1]], plan)[len(ids) - 1 :]

    chosen = greedy(ids, ANSWER_TOKENS)
    kl, top1 = divergence(logits(chosen, None), logits(chosen, plan))
    nll = answer_nll(logits(gold, plan), gold)
    recall = expected_recall(ids, plan)
    score = PromptScore(kl, top1, nll, *shares(plan), la_recall=recall.la, ca_recall=recall.ca)
    return answered(score, question, greedy(ids, question.answer_tokens, plan))


def shares(plan: SparsePlan) -> tuple[float, float, float]:
    """Count visited cells of naive masks: all, within documents, from later to earlier ones."""
    owner = np.full(plan.length, -1)
    for number, span in enumerate(plan.spans):
        owner[span.start : span.stop] = number
    rows, keys, causal = owner[:, None], owner[None, :], np.tri(plan.length, dtype=bool)
    masks = np.concatenate([naive_mask(plan, layer) for layer in range(2)])
    places = causal, causal & (rows == keys) & (keys >= 0), (rows > keys) & (keys >= 0)
    total, la, ca = ((masks & place).sum() / (len(masks) * place.sum()) for place in places)
    return float(total), float(la), float(ca)


def assert_same(found: PromptScore, expected: PromptScore) -> None:
    assert found.kl == pytest.approx(expected.kl, abs=1e-7, rel=1e-3)
    assert found.nll == pytest.approx(expected.nll, abs=1e-4)
    assert (found.top1, found.f1, found.em) == (expected.top1, expected.f1, expected.em)
    for name in ("density", "la_density", "ca_density", "la_recall", "ca_recall"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), abs=1e-6), name


def extracted(question: Question, policy: Policy, prefix: list[int]) -> SparsePlan:
    """Return the plan of a prompt whose every document is extracted."""
    extractor = Extractor(MODEL, policy, prefix)
    parts = WRITER.prompt(question.documents, question.question)
    masks = [extractor.extract(part.ids) for part in parts[1:-1]]
    plan = compose(MODEL.model, extractor.layout, parts, masks)
    assert plan.hits == 3
    return plan.sparse


def test_every_method_scores_every_prompt(report):
    assert list(report.scores) == list(METHODS)
    assert all(len(scores) == 2 for scores in report.scores.values())
    about = [(one.id, one.dataset, one.source) for one in report.asked]
    assert about == [(q.id, q.dataset, q.source) for q in questions()]
    lengths = [len(prompt_ids(question)) for question in questions()]
    assert report.tokens == lengths == [prompt_tokens(WRITER, q) for q in questions()]


def test_methods_answer_differently(report):
    for number in range(2):
        values = {scores[number].f1 for scores in report.scores.values()}
        assert len(values) > 1 and None not in values


def test_hits_and_misses_are_those_of_the_index(report):
    assert (report.hits, report.misses) == (5, 1)


def test_levels_of_one_index_are_counted_once(tmp_path):
    layout = replace(LAYOUT, levels=2)
    documents = {text[:12]: [WRITER.document(text)] for text in TEXTS}
    two_bits = SiftIndex.open(write_index(tmp_path / "i", MODEL, layout, documents), MODEL.model)
    names = ("paper", "sift:1", "sift:3", "sift")
    found = evaluate(Setting(MODEL, two_bits), questions(), names, KL_AND_MORE_ONLY)
    assert (found.hits, found.misses) == (5, 1)
    densities = [found.scores[name][0].ca_density for name in ("sift:3", "sift:1", "sift")]
    assert densities[0] < densities[1] == densities[2]
    found = evaluate(Setting(MODEL, two_bits), questions(), ("paper",), KL_AND_MORE_ONLY)
    assert (found.hits, found.misses) == (0, 0)


def test_dense_is_exactly_itself(report):
    for question, score in zip(questions(), report.scores["dense"], strict=True):
        ids, gold = prompt_ids(question), gold_of(question)
        nll = answer_nll(full_logits([*ids, *gold[:-1]], None)[len(ids) - 1 :], gold)
        assert score.nll == pytest.approx(nll, abs=1e-4)
        dense = PromptScore(0.0, 1.0, 0.0, 1.0, 1.0, 1.0)
        answer = greedy(ids, question.answer_tokens)
        assert len(answer) == question.answer_tokens
        assert replace(score, nll=0.0) == answered(dense, question, answer)
    one, two = report.scores["dense"]
    assert (one.f1, one.em) == (1.0, 1.0)  # one of the accepted answers is what it says
    assert two.f1 == two.em == pytest.approx(2 / 3)


@pytest.mark.parametrize("number", [0, 1])
def test_sift_is_the_naive_mask(report, index, number):
    question = questions()[number]
    plan = index.compose(WRITER.prompt(question.documents, question.question)).sparse
    expected = expected_score(question, plan)
    assert expected.kl > 1e-3 and expected.top1 < 1
    assert 0.1 < expected.ca_density < 0.9
    assert expected.ca_recall is not None and abs(expected.ca_recall - expected.ca_density) > 1e-3
    assert_same(report.scores["sift"][number], expected)


def test_sift_with_all_bits_on_is_dense(tmp_path):
    setting = Setting(MODEL, open_index(tmp_path, "on"))
    report = evaluate(setting, questions(), ("dense", "sift"))
    for dense, sift in zip(report.scores["dense"], report.scores["sift"], strict=True):
        assert sift.kl < 1e-6
        assert sift.nll == pytest.approx(dense.nll, abs=1e-4)
        assert (sift.la_recall, sift.ca_recall) == (1.0, 1.0)
        assert replace(sift, kl=0.0, nll=dense.nll, la_recall=None, ca_recall=None) == dense


@pytest.mark.parametrize("number", [0, 1])
def test_no_cross_is_a_mask_without_cells_between_documents(report, number):
    question = questions()[number]  # the second has a document that no index holds
    parts = WRITER.prompt(question.documents, question.question)
    length, spans = len(prompt_ids(question)), spans_of(parts)
    mask = np.tri(length, dtype=bool)
    for i, (start, stop) in enumerate(spans):
        for a, b in spans[:i]:
            mask[start:stop, a:b] = False
    assert len(spans) == 3
    plan = make_methods(["no-cross"], Setting(MODEL))["no-cross"](parts).plan
    assert plan is not None
    for layer in range(2):
        assert (naive_mask(plan.sparse, layer) == mask).all()
    score = report.scores["no-cross"][number]
    assert_same(score, expected_score(question, plan.sparse))
    assert (score.ca_density, score.la_density) == (0.0, 1.0)
    assert (score.ca_recall, score.la_recall) == (0.0, 1.0)
    assert score.density == pytest.approx(mask.sum() / (length * (length + 1) / 2))


def test_paper_extracts_the_documents_alone(report):
    question = questions()[1]  # also one that no index holds: the method brings its own masks
    plan = extracted(question, PaperPolicy(), [])
    assert_same(report.scores["paper"][1], expected_score(question, plan))


def test_reused_documents_are_a_cache_put_together_by_hand(index):
    question = questions()[0]
    found = evaluate(Setting(MODEL, index), [question], ("kv-reuse", "dense")).scores
    parts = WRITER.prompt(question.documents, question.question)
    spans, ids = spans_of(parts), prompt_ids(question)
    fresh = np.ones(len(ids), dtype=bool)
    for start, stop in spans:
        fresh[start:stop] = False

    def logits(answer: list[int]) -> torch.Tensor:
        by_hand = Partial(MODEL.model, parts, spans)
        first = by_hand.run(fresh)[-1:]
        rest = [by_hand.step(torch.tensor(answer[:-1]))] if answer[:-1] else []
        return torch.cat((first, *rest))

    chosen, gold = greedy(ids, ANSWER_TOKENS), gold_of(question)
    dense = full_logits([*ids, *chosen[:-1]], None)[len(ids) - 1 :]
    kl, top1 = divergence(dense, logits(chosen))
    nll = answer_nll(logits(gold), gold)
    said: list[int] = []
    while len(said) < question.answer_tokens:
        said.append(int(logits([*said, 0])[-1].argmax()))
    glue = [at + 1 for at in range(len(ids)) if fresh[at]]
    density = sum(glue) / (len(ids) * (len(ids) + 1) / 2)
    expected = answered(PromptScore(kl, top1, nll, density, 0.0, 0.0), question, said)
    score = found["kv-reuse"][0]
    assert kl > 1e-2 and expected.f1 != 1
    assert score.kl == pytest.approx(kl, rel=1e-3)
    assert score.nll == pytest.approx(nll, abs=1e-4)
    assert replace(score, kl=kl, nll=nll) == replace(expected, density=score.density)
    assert score.density == pytest.approx(density)
    assert found["dense"][0].f1 == 1.0


# --- without an index --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def policy_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    write_probes(folder / "probes")
    path = folder / "mine.yaml"
    path.write_text(
        "rule: probe\nprobe_source: probes\nprobe_tokens: 200\nprobe_rows: 200\n"
        "ca_thresholds: [0.05]\nla_dense_tiles: 1\nla_thresholds: [0.01]\n"
    )
    return str(path)


def test_without_an_index_documents_are_extracted_when_they_are_seen(policy_file):
    question, policy = questions()[1], load_policy(policy_file)
    assert isinstance(policy, ProbePolicy)
    report = evaluate(Setting(MODEL, None, policy_file), [question], ("dense", "sift"))
    plan = extracted(question, policy, WRITER.prefix())
    expected = expected_score(question, plan)
    assert 0.1 < expected.ca_density < 0.9 and expected.la_density < 1
    assert_same(report.scores["sift"][0], expected)
    assert (report.hits, report.misses) == (0, 0)  # there is no index to find them in


def test_paper_fixed_is_the_papers_rule_over_remaining_rows():
    question = questions()[0]
    found = evaluate(Setting(MODEL), [question], ("paper", "paper-fixed")).scores
    plan = extracted(question, PaperPolicy(normalisation="remaining"), [])
    assert_same(found["paper-fixed"][0], expected_score(question, plan))
    assert found["paper-fixed"][0].ca_density != found["paper"][0].ca_density


# --- options -----------------------------------------------------------------------------------


def test_what_is_not_asked_for_is_not_measured(index):
    setting, methods = Setting(MODEL, index), ("dense", "sift", "epic:9")
    everything = evaluate(setting, questions(), methods)
    for options in (
        EvalOptions(generate=False),
        EvalOptions(recall=False),
        EvalOptions(generate=False, recall=False),
    ):
        found = evaluate(setting, questions(), methods, options)
        for name, scores in found.scores.items():
            for score, full in zip(scores, everything.scores[name], strict=True):
                said = (full.f1, full.em) if options.generate else (None, None)
                seen = (full.la_recall, full.ca_recall) if options.recall else (None, None)
                assert (score.f1, score.em) == said
                assert (score.la_recall, score.ca_recall) == seen
                assert score.kl == pytest.approx(full.kl, abs=1e-6)
                assert score.nll == pytest.approx(full.nll, abs=1e-4)
    by_name = everything.scores
    assert None not in vars(by_name["sift"][0]).values()
    assert by_name["dense"][0].ca_recall is by_name["epic:9"][0].ca_recall is None


def test_progress_counts_questions(index):
    seen: list[int] = []
    evaluate(Setting(MODEL, index), questions(), ("dense",), KL_AND_MORE_ONLY, seen.append)
    assert seen == [1, 2]


def test_parts_of_a_report(report):
    part = report.where("dataset", "whys")
    assert part.asked == report.asked[1:]
    assert part.tokens == report.tokens[1:]
    assert part.scores == {name: scores[1:] for name, scores in report.scores.items()}
    assert (part.hits, part.misses) == (2, 1)
    assert report.where("source", "hop").asked == report.asked[:1]
    assert report.where("source", "none").tokens == []


# --- what is refused ---------------------------------------------------------------------------


def test_an_unknown_method_is_refused_before_anything_runs(index):
    seen: list[int] = []
    with pytest.raises(UsageError, match="expected methods of dense, .*; found 'magic'"):
        evaluate(Setting(MODEL, index), questions(), ("dense", "magic"), progress=seen.append)
    assert seen == []


def test_a_prompt_that_does_not_fit_is_refused_by_id_before_anything_runs():
    small = speaking(max_position_embeddings=len(prompt_ids(questions()[1])) + 64)
    seen: list[int] = []
    asked = [questions()[1], replace(questions()[0], documents=(*TEXTS, *TEXTS))]
    message = r"question one: expected at most \d+ tokens \(the model's context\), found \d+ with"
    with pytest.raises(UsageError, match=message):
        evaluate(Setting(small), asked, ("dense",), progress=seen.append)
    assert seen == []


@pytest.mark.parametrize(("answer_tokens", "needed"), [(1, 32), (32, 32), (50, 50)])
@pytest.mark.parametrize("spare", [-1, 0])
def test_the_answer_counts_towards_the_context(answer_tokens, needed, spare):
    question = replace(questions()[1], answer_tokens=answer_tokens)
    small = speaking(max_position_embeddings=len(prompt_ids(question)) + needed + spare)
    if spare == 0:
        assert len(evaluate(Setting(small), [question], ("dense",)).tokens) == 1
        return
    with pytest.raises(UsageError, match="question two: expected at most .* --max-tokens"):
        evaluate(Setting(small), [question], ("dense",))


def test_a_long_given_answer_counts_too():
    question = replace(questions()[1], answers=("x" * 90,))
    small = speaking(max_position_embeddings=len(prompt_ids(question)) + 89)
    with pytest.raises(UsageError, match="question two: expected at most"):
        evaluate(Setting(small), [question], ("dense",))


def test_an_empty_first_answer_is_refused_by_id(index):
    question = replace(questions()[0], answers=("", "mill"))
    with pytest.raises(UsageError, match="question one: expected a first answer with text"):
        evaluate(Setting(MODEL, index), [question], ("dense",))
