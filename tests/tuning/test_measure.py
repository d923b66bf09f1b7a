"""The bench against a whole evaluation of the same thresholds, and against masks that are on."""

from dataclasses import replace

import pytest
import torch

from sift_index.evaluation.methods.registry import Setting
from sift_index.evaluation.metrics import bootstrap
from sift_index.evaluation.questions import Question
from sift_index.evaluation.run import EvalOptions, evaluate
from sift_index.selection.extractor import DocumentScores
from sift_index.selection.policy import ProbePolicy
from sift_index.selection.rules import LayerScores
from sift_index.tuning.measure import LOWEST, Bench, cross_candidates, dense_reference
from sift_index.tuning.policyfile import policy_text
from sift_index.tuning.search import ALL_ON
from tests.plans import loaded, tiny

MODEL = loaded(tiny("llama", num_hidden_layers=3))
SETTING = Setting(MODEL)
TEXTS = [
    (f"Document {n} tells of mill {n} at river {n * n}. " * 20)[:length]
    for n, length in enumerate((150, 330, 290))
]
QUESTIONS = [
    Question("one", "Which mill?", ("the tide mill",), tuple(TEXTS)),
    Question("two", "Why?", ("x",), (TEXTS[1], TEXTS[0], TEXTS[1])),
]
POLICY = ProbePolicy(probe_rows=64, probe_tokens=64, la_dense_tiles=1, skip_last_layer=False)


class Told:
    def __init__(self) -> None:
        self.stages: list[tuple[str, int, int]] = []

    def __call__(self, stage: str, done: int, total: int) -> None:
        self.stages.append((stage, done, total))


@pytest.fixture(scope="module")
def told() -> Told:
    return Told()


@pytest.fixture(scope="module")
def bench(told) -> Bench:
    prompts = [SETTING.writer.prompt(q.documents, q.question) for q in QUESTIONS]
    references = [dense_reference(MODEL, prompt) for prompt in prompts]
    return Bench(MODEL, POLICY, SETTING.prefix, references, told)


def test_every_distinct_document_is_scored_once(bench, told):
    assert [s for s in told.stages if s[0] == "scoring documents"] == [
        ("scoring documents", n, 3) for n in (1, 2, 3)
    ]


@pytest.mark.parametrize("la", [0.0002, 0.02])
def test_a_measurement_is_what_an_evaluation_of_that_policy_finds(bench, tmp_path, la):
    ca = bench.candidates[2]
    found = bench.measure(ca, la)
    policy = replace(POLICY, ca_thresholds=(ca,), la_thresholds=(la,))
    path = tmp_path / "p.yaml"
    path.write_text(policy_text(policy, [], []))
    options = EvalOptions(generate=False, recall=False)
    report = evaluate(Setting(MODEL), QUESTIONS, [f"policy:{path}"], options)
    (scores,) = report.scores.values()
    assert found.kl == bootstrap([score.kl for score in scores])
    assert found.top1 == bootstrap([score.top1 for score in scores])
    assert found.ca_density == pytest.approx(sum(s.ca_density for s in scores) / 2, abs=1e-12)
    assert found.density == pytest.approx(sum(s.density for s in scores) / 2, abs=1e-12)
    assert 0 < found.ca_density < 1 and found.kl.mean > 1e-6


def test_sparser_thresholds_have_lower_densities(bench):
    found = [bench.measure(ca, 0.0002).ca_density for ca in bench.candidates]
    assert found == sorted(found, reverse=True) and found[0] > 0.75 and found[-1] < 0.6


def test_with_every_page_on_only_la_is_left_out(bench):
    dense = bench.measure(ALL_ON, LOWEST)
    assert dense.ca_density == dense.density == 1.0
    assert dense.kl.mean < 1e-9 and dense.top1.mean == 1.0
    sparse = bench.measure(ALL_ON, 0.5)
    assert sparse.ca_density == 1.0 and sparse.density < 1.0
    assert sparse.kl.mean > 1e-6


def test_every_page_means_also_those_that_the_policy_never_marks():
    reference = dense_reference(MODEL, SETTING.writer.prompt(TEXTS, "Which?"))
    skipping = replace(POLICY, skip_last_layer=True)
    bench = Bench(MODEL, skipping, SETTING.prefix, [reference], Told())
    assert bench.measure(LOWEST, LOWEST).ca_density < 1.0
    assert bench.measure(ALL_ON, LOWEST).ca_density == 1.0


def test_a_stage_says_its_threshold(bench, told):
    told.stages.clear()
    bench.measure(0.25, 0.001)
    bench.measure(ALL_ON, 0.5)
    assert told.stages == [
        *[("CA threshold 0.25", n, 2) for n in (1, 2)],
        *[("LA threshold 0.5", n, 2) for n in (1, 2)],
    ]


def test_documents_too_short_for_la_have_nothing_to_search(bench):
    assert bench.has_local
    prompt = SETTING.writer.prompt(QUESTIONS[0].documents, "Which?")
    short = replace(POLICY, la_dense_tiles=3)
    reference = dense_reference(MODEL, prompt)
    assert not Bench(MODEL, short, SETTING.prefix, [reference], Told()).has_local


def test_scores_carry_the_policys_head_weights(bench):
    weights = ((2.0, 1.0, 1.0, 1.0), (1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 1.0, 1e-6))
    prompt = SETTING.writer.prompt(TEXTS[:2], "Which?")
    weighed = Bench(
        MODEL,
        replace(POLICY, head_weights=weights),
        SETTING.prefix,
        [dense_reference(MODEL, prompt)],
        Told(),
    )
    assert weighed.candidates != bench.candidates


# --- candidates --------------------------------------------------------------------------------


def scores(tokens: int, *layers: list[list[float]]) -> DocumentScores:
    return DocumentScores(
        tuple(range(tokens)), tuple(LayerScores(torch.tensor(layer), None) for layer in layers)
    )


def test_candidates_are_quantiles_over_all_pages():
    document = scores(320, [[n / 100 for n in range(1, 11)]])
    assert cross_candidates([document], 32, (0.25, 0.45, 0.85)) == [0.02, 0.06, 0.08]


def test_a_short_page_counts_its_keys_only():
    # Of 36 keys, the 4 of the highest page are 11 %, so a fifth of them needs the next one too.
    documents = [scores(36, [[0.1, 0.9]])]
    assert cross_candidates(documents, 32, (0.1,)) == [0.9]
    assert cross_candidates(documents, 32, (0.2,)) == [0.1]


def test_candidates_stay_probabilities_and_are_rounded():
    document = scores(64, [[0.0, 7.0]], [[0.0, 0.123456]])
    assert cross_candidates([document], 32, (0.1, 0.4, 0.9)) == [LOWEST, 0.123, 0.999]


def test_equal_scores_give_one_candidate():
    assert cross_candidates([scores(64, [[0.5, 0.5]])], 32) == [0.5]
