"""Tuning the tiny model: what is set, what is kept, and that the numbers are the file's own."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from sift_index.errors import ModelError, TargetNotMetError, UsageError
from sift_index.evaluation.methods.registry import Setting
from sift_index.selection.policy import PaperPolicy, ProbePolicy, read_policy
from sift_index.selection.quality import quality_entries
from sift_index.tuning import run
from sift_index.tuning.policyfile import write_policy
from sift_index.tuning.report import cross_table, local_table, not_met, policy_notes, tune_values
from sift_index.tuning.run import tunable, tune
from sift_index.tuning.search import ALL_ON, LA_LADDER, Target, rounded
from tests.plans import loaded, tiny

MODEL = loaded(tiny("llama", num_hidden_layers=3))
SETTING = Setting(MODEL)
TEXTS = [(f"Document {n} tells of mill {n * n}. " * 20)[: 130 + 40 * n] for n in range(4)]
PROMPTS = [SETTING.writer.prompt(TEXTS[n : n + 2], f"Which {n}?") for n in range(3)]
POLICY = ProbePolicy(probe_rows=64, probe_tokens=64, la_dense_tiles=1)
TARGET = Target(max_kl=0.02)


@pytest.fixture(scope="module")
def found():
    return tune(SETTING, POLICY, PROMPTS, TARGET, "some texts")


def test_head_weights_come_first_and_have_few_digits(found):
    weights = found.policy.head_weights
    assert (len(weights), {len(row) for row in weights}) == (3, {4})
    assert all(number == rounded(number) for row in weights for number in row)


def test_the_policy_is_the_best_point_and_nothing_else_changes(found):
    best = found.best
    assert best is not None and best is found.closest and best in found.points
    assert found.policy == replace(
        POLICY,
        ca_thresholds=(best.ca_threshold,),
        la_thresholds=(best.la_threshold,),
        head_weights=found.policy.head_weights,
    )


def test_la_is_tuned_with_every_page_on(found):
    assert found.local and all(point.ca_threshold == ALL_ON for point in found.local)
    assert found.local[0].la_threshold == max(LA_LADDER)
    assert {point.la_threshold for point in found.points} == {found.local[-1].la_threshold}


def test_the_quality_is_the_best_points_and_valid_in_a_policy_file(found):
    quality, best = found.quality, found.best
    assert quality_entries([dict(quality)], "x") == (quality,)
    assert (quality["model"], quality["data"], quality["prompts"]) == ("tiny", "some texts", 3)
    assert quality["kl"] == pytest.approx(best.kl.mean, rel=1e-3)
    assert quality["top1_low"] == pytest.approx(best.top1.low, rel=1e-3)
    assert quality["ca_density"] == pytest.approx(best.ca_density, rel=1e-3)


def test_the_written_numbers_are_the_measured_ones(found, tmp_path):
    path = tmp_path / "policy.yaml"
    write_policy(path, found.policy, [found.quality], policy_notes(found, TARGET, "probe"))
    file = read_policy(str(path))
    assert file.policy == found.policy and file.quality == (found.quality,)
    weighed = tunable(file.policy)
    again = tune(SETTING, weighed, PROMPTS, TARGET, "some texts", weigh_heads=False)
    same = [point for point in again.points if point == found.best]
    assert same, "the same thresholds and weights measure the same"


def test_without_head_weights_the_policys_own_stay():
    own = ((1.0,) * 4, (0.5,) * 4, (2.0,) * 4)
    policy = replace(POLICY, head_weights=own)
    found = tune(SETTING, policy, PROMPTS[:1], TARGET, "x", weigh_heads=False)
    assert found.policy.head_weights == own


def test_short_documents_leave_the_policys_la_threshold():
    policy = replace(POLICY, la_dense_tiles=8, la_thresholds=(0.03,))
    found = tune(SETTING, policy, PROMPTS[:1], TARGET, "x", weigh_heads=False)
    assert found.local == () and found.policy.la_thresholds == (0.03,)


def test_at_most_four_prompts_weigh_heads_with_their_dense_answers(monkeypatch):
    seen: list[tuple[Any, Any]] = []

    def weigh(model, prompts, answers):
        seen.extend(zip(prompts, answers, strict=True))
        return ((1.23456,) * 4,) * 3

    monkeypatch.setattr(run, "head_weights", weigh)
    prompts = [SETTING.writer.prompt(TEXTS[:2], f"Why {n}?") for n in range(5)]
    found = tune(SETTING, POLICY, prompts, TARGET, "x")
    assert [prompt for prompt, _ in seen] == prompts[:4]
    assert all(1 <= len(answer) <= 32 for _, answer in seen)
    assert found.policy.head_weights == ((1.23,) * 4,) * 3


def test_memory_that_runs_out_says_what_to_do(monkeypatch):
    def weigh(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(run, "head_weights", weigh)
    with pytest.raises(ModelError, match="--no-head-weights"):
        tune(SETTING, POLICY, PROMPTS, TARGET, "x")


def test_an_unreachable_target_has_no_best_and_a_named_closest():
    policy = replace(POLICY, skip_last_layer=False, la_dense_tiles=8)
    target = Target(max_kl=1e-9, min_top1=0.5)
    found = tune(SETTING, policy, PROMPTS[:2], target, "x", weigh_heads=False)
    assert found.best is None and found.closest == found.points[0] and len(found.points) == 1
    error = not_met(found, target)
    assert isinstance(error, TargetNotMetError)
    shown = f"CA density {found.closest.ca_density:.3f}"
    assert shown in str(error) and "mean KL <= 1e-09 nats" in str(error)
    assert error.details["closest"]["kl"]["mean"] == found.closest.kl.mean
    assert error.details["best"] is None and error.details["met"] is False


def test_tables_and_values_have_every_point(found):
    _, columns, rows = cross_table(found)
    assert len(rows) == len(found.points) and {len(row) for row in rows} == {len(columns)}
    assert [row[-1] for row in rows].count("yes") == sum(p.meets for p in found.points)
    assert len(local_table(found)[2]) == len(found.local)
    values = tune_values(found, TARGET)
    assert len(values["points"]) == len(found.points)
    assert values["best"]["ca_threshold"] == found.policy.ca_thresholds[0]


def test_only_probe_policies_are_tuned_and_to_one_threshold():
    with pytest.raises(UsageError, match="rule 'paper'"):
        tunable(PaperPolicy())
    two = replace(POLICY, ca_thresholds=(0.001, 0.01), la_thresholds=(0.1, 0.2))
    assert tunable(two) == replace(POLICY, ca_thresholds=(0.001,), la_thresholds=(0.1,))
