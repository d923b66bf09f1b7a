"""Prompts for which sparse does not pay run dense, are counted, and said once in the log."""

import logging
from typing import Any

import pytest
import torch

from sift_index.adapters.transformers import batch_inputs, sift_attention, sift_generate
from sift_index.environment import CROSSOVER_VARIABLE
from sift_index.errors import UsageError
from sift_index.kernels.api import dense_attention, dense_rows
from sift_index.runtime import crossover
from sift_index.runtime.crossover import Counters, Crossover, CrossoverRow
from sift_index.runtime.explain import explain
from tests.adapters.test_transformers import (
    SHORT,
    close,
    dense_logits,
    logits_under,
    model_of,
    plan_of,
    prefill,
)

MODEL = model_of()


def table(*rows: tuple[int, float]) -> Crossover:
    return Crossover("test GPU", "tiny", tuple(CrossoverRow(*row) for row in rows))


ALWAYS, NEVER = table((1, 1.0)), table((10_000, 1.0))


@pytest.fixture
def counters(monkeypatch):
    found = Counters()
    monkeypatch.setattr("sift_index.adapters.transformers.counters", found)
    return found


@pytest.fixture(scope="module")
def plan():
    return plan_of(MODEL, "random", SHORT)


def logits(plan, choice) -> torch.Tensor:
    with torch.inference_mode(), sift_attention(MODEL, plan, crossover=choice):
        found: torch.Tensor = MODEL(plan.input_ids, use_cache=False).logits[0]
    return found


def test_a_prompt_below_runs_dense_and_others_sparse(plan, counters):
    assert close(logits(plan, NEVER), dense_logits(MODEL, plan))
    sparse = logits_under(MODEL, plan)
    assert torch.equal(logits(plan, ALWAYS), sparse)
    assert not close(sparse, dense_logits(MODEL, plan), 1e-2)
    assert (counters.dense, counters.sparse) == (1, 1)


def test_chunks_and_decoding_are_dense_too(plan, counters):
    with torch.inference_mode(), sift_attention(MODEL, plan, crossover=NEVER):
        parts, cache = prefill(MODEL, plan, [100, 1, 77])
    assert close(parts, dense_logits(MODEL, plan))
    assert cache.get_seq_length() == plan.length
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    found = sift_generate(MODEL, plan, crossover=NEVER, prefill_chunk_size=90, **options)
    assert found.tolist() == MODEL.generate(**batch_inputs(plan, 0), **options).tolist()


def test_each_prompt_of_a_batch_by_itself(plan, counters):
    other = plan_of(MODEL, "random")
    between = table((plan.length + 1, 1.0))
    options: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    found = sift_generate(MODEL, [plan, other], crossover=between, **options)
    assert (counters.dense, counters.sparse) == (1, 1)
    dense = MODEL.generate(**batch_inputs(plan, 0), **options)
    sparse = sift_generate(MODEL, other, crossover="off", **options)
    assert found[:, other.length :].tolist() == [
        dense[0, plan.length :].tolist(),
        sparse[0, other.length :].tolist(),
    ]


def test_the_log_says_it_once(plan, counters, caplog):
    with caplog.at_level(logging.INFO, logger="sift_index.runtime"):
        for _ in range(3):
            logits(plan, NEVER)
    assert [record.getMessage() for record in caplog.records] == [
        f"runs dense: below crossover ({plan.length:,} tokens; on test GPU sparse pays up to 0.00 "
        "at this length); said once, counted in runtime.crossover.counters"
    ]
    assert counters.dense == 3


def test_the_environment_stands_in_for_the_default(plan, counters, monkeypatch, tmp_path):
    path = tmp_path / "table.yaml"
    path.write_text("device: x\nmodel_shape: y\nrows: [{tokens: 9999, max_density: 1}]\n")
    monkeypatch.setenv(CROSSOVER_VARIABLE, str(path))
    assert close(logits(plan, None), dense_logits(MODEL, plan))
    assert torch.equal(logits(plan, "off"), logits_under_off(plan, monkeypatch))
    assert counters.dense == 1


def logits_under_off(plan, monkeypatch) -> torch.Tensor:
    monkeypatch.setenv(CROSSOVER_VARIABLE, "off")
    return logits(plan, None)


def test_a_cpu_and_an_unknown_gpu_run_sparse(plan, counters, monkeypatch):
    assert crossover.find_crossover("auto", torch.device("cpu")) is None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU of nobody")
    assert crossover.find_crossover("auto", torch.device("cuda")) is None
    logits(plan, "auto")
    assert (counters.dense, counters.sparse) == (0, 0)


def test_a_choice_that_is_none_is_refused_before_compute(plan):
    with pytest.raises(UsageError, match="expected auto, off or the path of a table, found 'on'"):
        logits(plan, "on")


def test_explain_says_that_it_runs_dense(plan):
    found = explain(plan, NEVER)
    assert found.dense and found.to_json()["dense"]
    assert any(note.startswith("runs dense: below crossover") for note in found.notes)
    sparse = explain(plan, ALWAYS)
    assert not sparse.dense and sparse.notes == explain(plan).notes


@pytest.mark.parametrize("rows", [1, 7, 40])
def test_dense_rows_are_dense_attention(rows):
    torch.manual_seed(0)
    q, k, v = torch.randn(4, rows, 16), torch.randn(2, 40, 16), torch.randn(2, 40, 16)
    scores = (q * 0.3) @ k.repeat_interleave(2, 0).transpose(1, 2)
    later = torch.ones(rows, 40, dtype=torch.bool).triu(40 - rows + 1)
    expected = scores.masked_fill(later, float("-inf")).softmax(-1) @ v.repeat_interleave(2, 0)
    assert close(dense_rows(q, k, v, 0.3), expected, 1e-5)
    assert close(dense_attention(q, k, v, 0.3), expected, 1e-5)
