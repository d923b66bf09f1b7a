"""Blocks hold where they were entered: not in contexts that outlive them, wherever they end."""

import threading
from collections.abc import Iterator
from contextvars import copy_context

import pytest
import torch

from sift_index.adapters.blocks import Blocks
from sift_index.adapters.compiled import compiled_pieces
from sift_index.adapters.transformers import sift_attention
from sift_index.errors import SiftWarning
from tests.adapters.test_transformers import SHORT, plan_of
from tests.plans import tiny, tokens


@pytest.fixture
def model():
    return tiny("llama")


def logits(model, ids) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(torch.tensor([list(ids)]), use_cache=False).logits
    return found


def in_thread(work) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_values_are_the_innermost_first_and_only_those_of_open_blocks():
    blocks: Blocks[str] = Blocks("test")
    with blocks.entered("outer"):
        with blocks.entered("inner"):
            assert list(blocks.innermost_first()) == ["inner", "outer"]
            context = copy_context()
        assert context.run(lambda: list(blocks.innermost_first())) == ["outer"]
    assert list(blocks.innermost_first()) == []
    assert context.run(lambda: list(blocks.innermost_first())) == []


def test_another_prompt_in_a_thread_that_outlives_the_block_is_dense(model):
    plan, other = plan_of(model, "off", SHORT), plan_of(model, "on", SHORT)
    ids = tokens(plan.length, seed=5)  # as long as the plan's, so that nothing else is in the way
    dense, found = logits(model, ids), []
    with sift_attention(model, plan):
        context = copy_context()
        assert not torch.allclose(logits(model, plan.ids), logits(tiny("llama"), plan.ids))
    with sift_attention(model, other), pytest.warns(SiftWarning, match="runs densely"):
        in_thread(lambda: found.append(context.run(logits, model, ids)))
    torch.testing.assert_close(found[0], dense)


def entered_and_left_in_other_contexts(block) -> None:
    """As a web framework does that takes each piece of an answer in a context of its own."""

    def stream() -> Iterator[int]:
        with block:
            yield 1

    pieces = stream()
    assert copy_context().run(next, pieces) == 1
    assert copy_context().run(list, pieces) == []


def test_a_block_left_in_another_context_leaves_the_model_as_it_was(model):
    plan = plan_of(model, "off", SHORT)
    before, hooks = logits(model, plan.ids), len(model.base_model._forward_pre_hooks)
    entered_and_left_in_other_contexts(sift_attention(model, plan))
    assert model.config._attn_implementation == "sdpa"
    assert len(model.base_model._forward_pre_hooks) == hooks
    assert torch.equal(logits(model, plan.ids), before)


def test_compiled_pieces_left_in_another_context_leave_the_model_as_it_was(model):
    entered_and_left_in_other_contexts(compiled_pieces(model, backend="eager"))
    assert not any("forward" in vars(module) for module in model.modules())


def test_threads_of_one_block_run_its_prompt_at_the_same_time(model):
    plan = plan_of(model, "random", SHORT)
    with sift_attention(model, plan):
        alone = logits(model, plan.ids)
        meeting, found = threading.Barrier(2, timeout=60), list[torch.Tensor]()

        def work(first: int) -> None:
            # The whole prompt in one thread, its first tokens in the other: in the same layer.
            found.append(logits(model, plan.ids[:first]))

        def meet(*_: object) -> None:
            meeting.wait()

        hook = model.base_model.layers[0].register_forward_pre_hook(meet)
        contexts = [copy_context(), copy_context()]
        threads = [
            threading.Thread(target=context.run, args=(work, first))
            for context, first in zip(contexts, (100, plan.length), strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        hook.remove()
    short, whole = sorted(found, key=lambda one: one.shape[1])
    torch.testing.assert_close(whole, alone)
    torch.testing.assert_close(short, alone[:, :100])
