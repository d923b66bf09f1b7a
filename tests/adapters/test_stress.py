"""Many prompts, in a row and in threads, through one index: nothing mixes, nothing grows."""

import gc
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from sift_index.adapters.transformers import sift_attention
from sift_index.prompts import Segment
from sift_index.runtime.index import SiftIndex
from tests.plans import layout_of, loaded, tiny, tokens, write_index

PROMPTS, THREADS = 200, 4
MODEL = loaded(tiny("llama", hidden_size=32, num_attention_heads=2, num_key_value_heads=1))
DOCUMENTS = {str(n): [tokens(n)] for n in (20, 64, 127, 150, 200, 257)}


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> SiftIndex:
    root = tmp_path_factory.mktemp("stress") / "i"
    layout = layout_of(MODEL.model, levels=2)
    write_index(root, MODEL, layout, DOCUMENTS)
    return SiftIndex.open(root, MODEL.model, MODEL.tokenizer)


def prompt(index: SiftIndex, number: int) -> list[Segment]:
    """Return a random prompt: documents in any order, some twice, some unknown, or none."""
    generator = np.random.default_rng(number)
    chosen = generator.choice([*DOCUMENTS, "unknown"], generator.integers(0, 4))
    parts = [Segment(DOCUMENTS[n][0] if n in DOCUMENTS else tokens(33, number)) for n in chosen]
    query = tokens(int(generator.integers(1, 30)), seed=number)
    return [Segment(index.writer(MODEL).prefix(), glue=True), *parts, Segment(query, glue=True)]


def run(index: SiftIndex, number: int) -> torch.Tensor:
    plan = index.compose(prompt(index, number), quality=("best", "balanced", "fast")[number % 3])
    with torch.inference_mode(), sift_attention(MODEL.model, plan):
        found: torch.Tensor = MODEL.model(plan.input_ids, use_cache=False).logits[0, -1]
    return found


def living() -> int:
    gc.collect()
    return sum(type(one) is torch.Tensor for one in gc.get_objects())


@pytest.fixture(scope="module")
def alone(index) -> list[torch.Tensor]:
    """What each prompt gives when nothing has run before it: an index opened for it alone."""
    found = []
    for number in range(PROMPTS):
        fresh = SiftIndex.open(index.reader.paths.root, MODEL.model, MODEL.tokenizer)
        found.append(run(fresh, number))
    return found


def test_prompts_in_a_row_give_what_each_gives_alone(index, alone):
    assert all(torch.equal(run(index, n), alone[n]) for n in range(PROMPTS))
    assert len({tuple(row.tolist()) for row in alone}) > PROMPTS // 2  # they do differ


def test_threads_through_one_index_give_what_each_prompt_gives_alone(index, alone):
    before = index.counters.prompts
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda n: run(index, n), range(PROMPTS)))
    assert all(torch.equal(one, other) for one, other in zip(found, alone, strict=True))
    assert index.counters.prompts == before + PROMPTS


def test_nothing_grows(index):
    def some() -> None:
        for number in range(40):
            run(index, number)

    some()
    tensors = living()
    tracemalloc.start()
    some()
    first = tracemalloc.get_traced_memory()[0]
    some()
    some()
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - first
    tracemalloc.stop()
    assert living() == tensors
    assert grown < 50_000  # 80 prompts: their ids alone are 100 KB
    assert not MODEL.model.base_model._forward_pre_hooks
