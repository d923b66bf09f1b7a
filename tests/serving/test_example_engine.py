"""The example engine answers as transformers does under the same plan, and densely without one."""

import gc
from pathlib import Path

import pytest
import torch

from sift_index.adapters.transformers import sift_attention
from sift_index.errors import (
    FingerprintMismatchError,
    PlanError,
    UnsupportedModelError,
    UsageError,
)
from sift_index.prompts import Segment
from sift_index.runtime.index import SiftIndex
from sift_index.serving import example_engine
from sift_index.serving.example_engine import ExampleEngine
from tests.plans import layout_of, tiny, tokens, write_index
from tests.plans import loaded as as_loaded
from tests.serving.code_lines import code_lines
from tests.serving.served import MODEL, layer_of, prompt

NEW = 8


def test_the_engine_is_at_most_60_lines_of_code():
    assert 30 < code_lines(Path(example_engine.__file__)) <= 60


def generated(model, ids) -> list[int]:
    inputs = torch.tensor([ids])
    options = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    # With a mask, tokens that happen to be the pad token are not taken for padding.
    found = model.generate(inputs, attention_mask=torch.ones_like(inputs), **options)
    return found[0, len(ids) :].tolist()


def under_plan(model, plan) -> list[int]:
    with sift_attention(model, plan):
        return generated(model, plan.ids)


@pytest.mark.parametrize("chunk, page_size", [(64, 16), (300, 64), (4096, 256)])
def test_a_batch_answers_as_transformers_does(index, chunk, page_size):
    engine = ExampleEngine(MODEL.model, index, page_size, pages=4096 // page_size, chunk=chunk)
    handles = [
        engine.layer.from_segments(prompt(index, 300, -3, 129)),
        engine.layer.from_ids([i for part in prompt(index, 520, 40) for i in part.ids]),
        engine.layer.from_ids(tokens(50, seed=9)),
    ]
    assert [handle.plan.hits for handle in handles] == [2, 2, 0]
    free = len(engine.free)
    expected = [under_plan(MODEL.model, handle.plan) for handle in handles]
    assert engine.generate(handles, NEW) == expected
    assert engine.generate(handles[::-1], NEW) == expected[::-1]
    assert sorted(engine.free) == list(range(free))
    # Another answer than dense attention's: the plan is in force.
    assert expected[0] != generated(MODEL.model, handles[0].ids)


def test_what_is_not_indexed_is_answered_densely(index):
    engine = ExampleEngine(MODEL.model, index)
    prompts = [tokens(700, seed=21), tokens(33, seed=22)]
    answers = engine.generate([engine.layer.from_ids(ids) for ids in prompts], NEW)
    assert answers == [generated(MODEL.model, ids) for ids in prompts]
    assert engine.layer.counters().density == 1.0


def test_pages_run_out(index):
    engine = ExampleEngine(MODEL.model, index, pages=5)
    handles = [engine.layer.from_ids(tokens(n)) for n in (30, 40)]
    with pytest.raises(UsageError, match="at most 5 KV pages, found 6"):
        engine.generate(handles, 8)
    assert len(engine.generate(handles[:1], 8)[0]) == 8 and len(engine.free) == 5
    assert engine.generate([], 8) == []


@pytest.mark.parametrize("model_type", ["mistral", "qwen2"])
def test_other_models_of_the_kind(model_type, tmp_path):
    model = as_loaded(tiny(model_type))
    document = tokens(300)
    write_index(tmp_path / "i", model, layout_of(model.model), {"a": [document]})
    engine = ExampleEngine(model.model, SiftIndex.open(tmp_path / "i", model.model))
    glue = Segment(tokens(9), glue=True)
    segments = [glue, Segment(document), glue]
    with pytest.warns(match="prefix"):
        handle = engine.layer.from_segments(segments)
    assert engine.generate([handle], NEW) == [under_plan(model.model, handle.plan)]


def test_bfloat16_answers_as_transformers_does(tmp_path):
    model = as_loaded(tiny("llama").bfloat16())
    document = tokens(300)
    write_index(tmp_path / "i", model, layout_of(model.model), {"a": [document]})
    index = SiftIndex.open(tmp_path / "i", model.model)
    engine = ExampleEngine(model.model, index)
    prefix = Segment(index.writer(model).prefix(), glue=True)
    handle = engine.layer.from_segments([prefix, document, tokens(20, seed=1)])
    assert engine.cache.dtype == torch.bfloat16 and handle.plan.hits == 1
    assert engine.generate([handle], NEW) == [under_plan(model.model, handle.plan)]


def test_a_sliding_window_that_the_index_knows_nothing_of_is_refused(tmp_path):
    model = as_loaded(tiny("mistral"))
    write_index(tmp_path / "i", model, layout_of(model.model), {"a": [tokens(300)]})
    index = SiftIndex.open(tmp_path / "i", model.model)
    model.model.config.sliding_window = 64
    with pytest.raises(UnsupportedModelError, match="sliding-window"):
        ExampleEngine(model.model, index)


def test_many_requests_leave_nothing_behind(index):
    engine = ExampleEngine(MODEL.model, index)

    def some() -> int:
        for n in range(20):
            parts = prompt(index, 40, -(1 + n % 7), 100)
            both = engine.layer.from_segments(parts), engine.layer.from_ids(tokens(20, n))
            engine.generate(both, 2)
        gc.collect()
        return sum(type(one) is torch.Tensor for one in gc.get_objects())

    assert some() == some() == some()


@pytest.mark.parametrize("model_type", ["qwen3", "olmo2", "mixtral"])
def test_models_of_another_kind_are_refused(index, model_type):
    with pytest.raises(UnsupportedModelError, match=f"found {model_type}; run it with sift_att"):
        ExampleEngine(tiny(model_type), index)


def test_another_model_than_the_index_was_built_for_is_refused(index):
    with pytest.raises(FingerprintMismatchError, match="weights"):
        ExampleEngine(tiny("llama", seed=5), index)


def test_pages_come_back_when_a_request_fails(index, shared_index):
    engine = ExampleEngine(MODEL.model, index)
    free = len(engine.free)
    foreign = layer_of(shared_index).from_segments(prompt(shared_index, 300))
    for handle, error in ((foreign, PlanError), (engine.layer.from_segments([]), UsageError)):
        with pytest.raises(error):
            engine.generate([handle], NEW)
        assert sorted(engine.free) == list(range(free))


@pytest.fixture(scope="module")
def small(smollm2, tmp_path_factory):
    """SmolLM2 with two documents that attend to nothing of each other, as no build gives them."""
    ids = smollm2.tokenizer("Light is slower in glass than in air. " * 40).input_ids
    documents = {"a": [ids[:150]], "b": [ids[150:390]]}
    root = tmp_path_factory.mktemp("index") / "i"
    write_index(root, smollm2, layout_of(smollm2.model), documents, kind="off")
    return SiftIndex.open(root, smollm2.model, smollm2.tokenizer), documents


def test_a_trained_model_gives_the_tokens_of_sift_attention(smollm2, small):
    index, documents = small
    writer = index.writer(smollm2)
    segments = [
        Segment(writer.prefix(), glue=True),
        *(Segment(ids) for (ids,) in documents.values()),
        Segment(writer.query("Where is light slower?"), glue=True),
    ]
    engine = ExampleEngine(smollm2.model, index, chunk=128)
    handle = engine.layer.from_segments(segments)
    assert handle.plan.hits == 2
    assert engine.generate([handle], NEW) == [under_plan(smollm2.model, handle.plan)]
    assert engine.layer.counters().density < 0.9
    unknown = engine.layer.from_ids(smollm2.tokenizer("The capital of France is").input_ids)
    assert engine.generate([unknown], NEW) == [generated(smollm2.model, unknown.ids)]
