"""A real transformers forward under a plan, against dense attention and against naive masks."""

import contextvars
import threading
from dataclasses import replace
from functools import cache

import pytest
import torch
from transformers import DynamicCache, StaticCache

from sift_index.adapters.hf_attention import NAME
from sift_index.adapters.hf_calls import cache_argument, cache_of
from sift_index.adapters.transformers import sift_attention
from sift_index.errors import (
    FingerprintMismatchError,
    PlanError,
    SiftWarning,
    UnsupportedModelError,
)
from sift_index.formats.identity import token_bytes
from sift_index.models.support import TESTED_TYPES
from sift_index.prompts import Segment
from sift_index.runtime.index import SiftIndex
from sift_index.runtime.plan import PromptPlan
from tests.attention import eager, eager_logits
from tests.kernels.naive import naive_mask
from tests.plans import compose, layout_of, loaded, masks_of, tiny, tokens, write_index
from tests.tiny import tiny_model_of

# Unaligned documents of every awkward length, one of them twice, one unknown, glue between.
DOCUMENTS = {n: tokens(n) for n in (1, 127, 128, 129, 300, 1000)}
UNKNOWN = tokens(70, seed=1)
PROMPT: list[Segment | list[int]] = [
    Segment(tokens(9, seed=2), glue=True),
    DOCUMENTS[129],
    DOCUMENTS[1],
    Segment(tokens(3, seed=3), glue=True),
    DOCUMENTS[1000],
    UNKNOWN,
    DOCUMENTS[128],
    DOCUMENTS[127],
    DOCUMENTS[129],
    Segment(tokens(21, seed=4), glue=True),
]
# Long enough for LA bits that are not forced, short enough for L x L float64.
SHORT: list[Segment | list[int]] = [*PROMPT[:4], DOCUMENTS[300], UNKNOWN, *PROMPT[7:]]
LAYOUTS = {
    "page 32": {},
    "page 8, kv heads": {"mask_heads": 2, "page_size": 8},
    "page 128, paper": {"page_size": 128, "boundary": 0, "neighbour": False},
    "page 16, 2 bits": {"page_size": 16, "levels": 2},
}


@cache
def model_of(model_type: str = "llama"):
    return tiny(model_type)


def plan_of(model, kind: str, prompt=PROMPT, level: int = 1, **layout) -> PromptPlan:
    shape = layout_of(model, **layout)
    known = [masks_of(ids, shape, kind) for ids in DOCUMENTS.values()]
    return compose(model, shape, prompt, known, level)


def logits_under(model, plan: PromptPlan) -> torch.Tensor:
    with torch.inference_mode(), sift_attention(model, plan):
        return model(plan.input_ids, use_cache=False).logits[0]


def dense_logits(model, plan: PromptPlan) -> torch.Tensor:
    with torch.inference_mode():
        return model(plan.input_ids, use_cache=False).logits[0]


def naive_logits(model, plan: PromptPlan) -> torch.Tensor:
    masks = [naive_mask(plan.sparse, layer) for layer in range(plan.sparse.layout.layers)]
    return eager_logits(model, plan.ids, masks)


def close(a: torch.Tensor, b: torch.Tensor, limit: float = 1e-4) -> bool:
    return (a - b).abs().max().item() < limit


@pytest.mark.parametrize("model_type", TESTED_TYPES)
def test_all_bits_on_is_dense_attention(model_type):
    model = model_of(model_type)
    plan = plan_of(model, "on")
    assert [o.kind for o in plan.outcomes].count("span") == 6
    assert close(logits_under(model, plan), dense_logits(model, plan))


@pytest.mark.parametrize("model_type", TESTED_TYPES)
def test_random_bits_are_the_naive_mask_and_not_dense(model_type):
    model = model_of(model_type)
    plan = plan_of(model, "random", SHORT)
    sparse = logits_under(model, plan)
    assert close(sparse, naive_logits(model, plan))
    assert not close(sparse, dense_logits(model, plan), 1e-2)


@pytest.mark.parametrize("parts", [PROMPT[1:2], [DOCUMENTS[300]] * 3, [DOCUMENTS[129], []]])
def test_one_document_repeated_ones_and_an_empty_query(parts):
    model = model_of()
    plan = plan_of(model, "random", [PROMPT[0], *parts])
    assert close(logits_under(model, plan), naive_logits(model, plan))


def test_random_bits_on_the_long_prompt():
    model = model_of()
    plan = plan_of(model, "random")
    assert close(logits_under(model, plan), naive_logits(model, plan))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("kind", ["off", "random"])
def test_bits_are_the_naive_mask_in_every_layout(kind, layout):
    model = model_of()
    plan = plan_of(model, kind, SHORT, **layout)
    sparse = logits_under(model, plan)
    assert close(sparse, naive_logits(model, plan))
    assert not close(sparse, dense_logits(model, plan), 1e-2)


@pytest.mark.parametrize("level", [2, 3])
def test_levels_are_the_naive_mask_of_the_level(level):
    model = model_of()
    plan = plan_of(model, "random", SHORT, level, levels=2)
    assert close(logits_under(model, plan), naive_logits(model, plan))
    densest = plan_of(model, "random", SHORT, levels=2)
    assert not close(logits_under(model, plan), logits_under(model, densest), 1e-2)


def test_all_bits_on_through_an_index_on_disk(tmp_path):
    model = loaded(model_of())
    documents = {str(n): [ids] for n, ids in DOCUMENTS.items()}
    root = write_index(tmp_path / "i", model, layout_of(model.model), documents, "on")
    index = SiftIndex.open(root, model.model, model.tokenizer)
    prompt = [Segment(index.writer(model).prefix(), glue=True), *PROMPT[1:]]
    plan = index.compose(prompt)
    assert plan.hits == 6
    assert plan.misses == 1
    assert close(logits_under(model.model, plan), dense_logits(model.model, plan))


def test_the_trained_model(smollm2):
    model = smollm2.model
    text = "The kelp farm of Hovra sends its harvest to the tide mill on every second Tuesday. "
    ids = smollm2.tokenizer(text * 30, add_special_tokens=False).input_ids
    known = [ids[:1], ids[1:128], ids[3:132]]
    prompt = [Segment(ids[:9], glue=True), *known, ids[2:20], known[1], Segment(ids[:8], glue=True)]
    shape = layout_of(model)
    plan = compose(model, shape, prompt, [masks_of(d, shape, "on") for d in known])
    dense = dense_logits(model, plan)
    assert plan.hits == 4
    assert close(logits_under(model, plan), dense, 2e-3)
    off = compose(model, shape, prompt, [masks_of(d, shape, "off") for d in known])
    assert not close(logits_under(model, off), dense, 1e-1)


# --- generation and caches -------------------------------------------------------------------


def prefill(model, plan: PromptPlan, chunks: list[int]):
    """Return logits [L, V] and the cache of a prefill in chunks of these lengths."""
    cached = {cache_argument(model): DynamicCache(config=model.config)}
    at, parts = 0, []
    for size in [*chunks, plan.length - sum(chunks)]:
        output = model(plan.input_ids[:, at : at + size], use_cache=True, **cached)
        parts.append(output.logits[0])
        at += size
    return torch.cat(parts), cached[cache_argument(model)]


def greedy(model, logits: torch.Tensor, cached, steps: int) -> list[int]:
    found = [int(logits[-1].argmax())]
    while len(found) < steps:
        output = model(
            torch.tensor([found[-1:]]), use_cache=True, **{cache_argument(model): cached}
        )
        found.append(int(output.logits[0, -1].argmax()))
    return found


def generated(model, ids: torch.Tensor, **options) -> list[int]:
    out = model.generate(ids, max_new_tokens=12, min_new_tokens=12, do_sample=False, **options)
    return out[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "minimax_m2"])
def test_generate_equals_a_manual_loop_that_decodes_densely(model_type):
    model = model_of(model_type)
    plan = plan_of(model, "random", SHORT)
    with torch.inference_mode():
        with sift_attention(model, plan):
            logits, cached = prefill(model, plan, [])
        assert not close(logits, dense_logits(model, plan), 1e-2)
        outside = greedy(model, logits, cached, 12)  # plain dense steps on the sparse cache
        with sift_attention(model, plan):
            found = generated(model, plan.input_ids)
            chunked = generated(model, plan.input_ids, prefill_chunk_size=100)
    stops = {model.config.eos_token_id} & set(outside)
    assert not stops, "choose another seed: the stop token would end the comparison"
    assert found == outside
    assert chunked == outside
    assert model_type != "llama" or found != generated(model, plan.input_ids)


def test_generate_with_all_bits_on_equals_dense_generate():
    model = model_of()
    plan = plan_of(model, "on", SHORT)
    with sift_attention(model, plan):
        found = generated(model, plan.input_ids)
    assert found == generated(model, plan.input_ids)


@pytest.mark.parametrize("chunks", [[1, 8, 1], [50, 128, 128], [139, 700], [*[100] * 15]])
def test_chunks_that_cut_spans_anywhere_equal_one_pass(chunks):
    model = model_of()
    plan = plan_of(model, "random")
    with torch.inference_mode(), sift_attention(model, plan):
        whole, cache_whole = prefill(model, plan, [])
        parts, cache_parts = prefill(model, plan, chunks)
    assert close(parts, whole)
    for one, other in zip(cache_whole.layers, cache_parts.layers, strict=True):
        torch.testing.assert_close(one.keys, other.keys, atol=1e-4, rtol=1e-4)


def test_the_cache_is_complete_and_dense_with_all_bits_on():
    model = model_of()
    plan = plan_of(model, "on")
    with torch.inference_mode():
        with sift_attention(model, plan):
            sparse = cache_of(model(plan.input_ids, use_cache=True))
        dense = cache_of(model(plan.input_ids, use_cache=True))
    assert sparse.get_seq_length() == plan.length
    assert len(sparse.layers) == model.config.num_hidden_layers
    for one, other in zip(sparse.layers, dense.layers, strict=True):
        torch.testing.assert_close(one.keys, other.keys, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(one.values, other.values, atol=1e-4, rtol=1e-4)


def test_tokens_behind_the_plan_are_dense_rows():
    model = model_of()
    plan = plan_of(model, "random", SHORT)
    more = tokens(40, seed=9)
    masks = [naive_mask(replace(plan.sparse, length=plan.length + 40), i) for i in range(2)]
    with torch.inference_mode(), sift_attention(model, plan):
        _, cached = prefill(model, plan, [])
        rows = model(torch.tensor([more]), use_cache=True, **{cache_argument(model): cached})
    assert close(rows.logits[0], eager_logits(model, [*plan.ids, *more], masks)[plan.length :])


# --- errors, before anything is computed -----------------------------------------------------


def attended(model) -> list[int]:
    """Return a list that grows whenever a layer of the model computes attention."""
    found: list[int] = []
    for number, layer in enumerate(model.model.layers):
        layer.self_attn.o_proj.register_forward_hook(lambda *_, n=number: found.append(n))
    return found


MISUSES = {
    "other ids": (
        lambda plan: {"input_ids": torch.cat((plan.input_ids[:, :40], plan.input_ids[:, 41:]), 1)},
        "position 40",
    ),
    "another prompt beside it": (
        lambda plan: {"input_ids": torch.cat((plan.input_ids, plan.input_ids + 1))},
        "prompt 1: expected the plan's tokens",
    ),
    "padding": (
        lambda plan: {
            "input_ids": plan.input_ids,
            "attention_mask": (torch.arange(plan.length) > 3)[None].long(),
        },
        "padding",
    ),
    "own mask": (
        lambda plan: {
            "input_ids": plan.input_ids,
            "attention_mask": torch.zeros(1, 1, plan.length, plan.length),
        },
        "attention mask",
    ),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_is_refused_before_compute_and_attention_is_restored(misuse):
    model = tiny("llama")
    plan = plan_of(model, "random", SHORT)
    arguments, message = MISUSES[misuse]
    seen = attended(model)
    before = model.config._attn_implementation
    with pytest.raises(PlanError, match=message):
        with sift_attention(model, plan):
            model(**arguments(plan))
    assert seen == []
    assert model.config._attn_implementation == before != NAME
    assert not model._forward_pre_hooks
    assert close(dense_logits(model, plan), eager_logits(model, plan.ids))


def test_other_ids_in_a_later_chunk_are_named_by_their_place_in_the_prompt():
    model = model_of()
    plan = plan_of(model, "random", SHORT)
    wrong = plan.input_ids.clone()
    wrong[0, 200] = 300
    other = replace(plan, data=token_bytes(wrong[0].tolist()))
    message = f"token 300 at position 200 where the plan has {plan.ids[200]}"
    with torch.inference_mode(), sift_attention(model, plan):
        with pytest.raises(PlanError, match=message):
            prefill(model, other, [150])


def test_static_cache_is_refused():
    model = model_of()
    plan = plan_of(model, "random", SHORT)
    cached = StaticCache(config=model.config, max_cache_len=2048)
    with pytest.raises(PlanError, match="DynamicCache or none, found StaticCache"):
        with sift_attention(model, plan):
            model(plan.input_ids, use_cache=True, **{cache_argument(model): cached})
    with pytest.raises(PlanError, match="StaticCache"):
        with sift_attention(model, plan):
            generated(model, plan.input_ids, cache_implementation="static")


def test_a_cache_that_holds_another_prompt_is_refused():
    model = model_of()
    plan = plan_of(model, "random", SHORT)
    with torch.inference_mode():
        cached = cache_of(model(torch.tensor([tokens(5, seed=8)]), use_cache=True))
        with pytest.raises(PlanError, match="position 5"), sift_attention(model, plan):
            model(plan.input_ids, use_cache=True, **{cache_argument(model): cached})


def test_a_model_of_other_weights_is_refused_by_the_field():
    plan = plan_of(model_of(), "on", SHORT)
    with pytest.raises(FingerprintMismatchError, match=r"serve\.weights: index has") as caught:
        with sift_attention(tiny_model_of("llama", seed=1), plan):
            pass
    assert "architecture" not in str(caught.value)


def test_a_model_of_other_geometry_is_refused_naming_every_field():
    plan = plan_of(model_of(), "on", SHORT)
    other = tiny("llama", num_hidden_layers=3, rope_theta=5000.0)
    with pytest.raises(FingerprintMismatchError) as caught:
        with sift_attention(other, plan):
            pass
    message = str(caught.value)
    assert "serve.architecture.layers: index has 2, model has 3" in message
    assert "serve.rope.rope_theta: index has 10000.0, model has 5000.0" in message


def test_an_unsupported_model_is_refused_by_name():
    plan = plan_of(model_of(), "on", SHORT)
    other = tiny_model_of("mistral", sliding_window=64)
    with pytest.raises(UnsupportedModelError, match="'mistral'.*sliding-window attention"):
        with sift_attention(other, plan):
            pass


# --- one model, several plans ----------------------------------------------------------------


def test_the_implementation_is_ours_inside_and_its_own_afterwards():
    model = tiny("llama")
    model.set_attn_implementation("eager")
    plan = plan_of(model, "on", SHORT)
    with sift_attention(model, plan):
        assert model.config._attn_implementation == NAME
    assert model.config._attn_implementation == "eager"


def test_a_model_left_on_our_name_is_refused():
    model = tiny("llama")
    plan = plan_of(model, "on", SHORT)
    model.set_attn_implementation(NAME)
    with pytest.raises(PlanError, match="left on 'sift'"), sift_attention(model, plan):
        pass


def test_nested_plans_do_not_mix():
    model = model_of()
    outer, inner = plan_of(model, "random"), plan_of(model, "off", SHORT)
    alone = [logits_under(model, plan) for plan in (outer, inner)]
    with sift_attention(model, outer):
        assert torch.equal(logits_under(model, inner), alone[1])
        with torch.inference_mode():
            assert torch.equal(model(outer.input_ids, use_cache=False).logits[0], alone[0])
    assert model.config._attn_implementation != NAME


def test_plans_of_two_models_in_one_thread_do_not_mix():
    one, two = model_of(), model_of("qwen3")
    plans = plan_of(one, "random", SHORT), plan_of(two, "off", SHORT)
    alone = [logits_under(m, plan) for m, plan in zip((one, two), plans, strict=True)]
    with torch.inference_mode(), sift_attention(one, plans[0]), sift_attention(two, plans[1]):
        assert torch.equal(one(plans[0].input_ids, use_cache=False).logits[0], alone[0])
        assert torch.equal(two(plans[1].input_ids, use_cache=False).logits[0], alone[1])


def test_threads_with_their_own_plans_give_what_each_gives_alone():
    model = tiny("llama")
    first, second = plan_of(model, "random", SHORT), plan_of(model, "off", SHORT)
    plans = [first, second, None]
    ids = second.input_ids
    alone = [*(logits_under(model, p) for p in (first, second)), dense_logits(model, second)]
    # All three meet inside the first layer of every forward, so their calls always overlap.
    barrier = threading.Barrier(3, timeout=30)
    model.model.layers[0].register_forward_pre_hook(lambda *_: (barrier.wait(), None)[1])
    found: dict[int, list[torch.Tensor]] = {0: [], 1: [], 2: []}

    def work(number: int, plan: PromptPlan | None) -> None:
        for _ in range(3):
            with torch.inference_mode():
                if plan is None:
                    found[number].append(model(ids, use_cache=False).logits[0])
                else:
                    with sift_attention(model, plan):
                        found[number].append(model(plan.input_ids, use_cache=False).logits[0])

    threads = [threading.Thread(target=work, args=item) for item in enumerate(plans)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(results) for results in found.values()] == [3, 3, 3]
    for number, expected in enumerate(alone):
        assert all(close(result, expected) for result in found[number])
    assert model.config._attn_implementation == "sdpa"


def test_without_a_handler_our_name_is_ordinary_attention_with_padding():
    model = tiny("llama")
    ids = torch.tensor([tokens(30), tokens(30, seed=1)])
    padding = torch.ones_like(ids)
    padding[1, :12] = 0
    with torch.inference_mode():
        expected = model(ids, attention_mask=padding).logits
        model.set_attn_implementation(NAME)
        found = model(ids, attention_mask=padding).logits
    torch.testing.assert_close(found, expected)


def test_the_naive_attention_of_these_tests_is_dense_without_masks():
    model = model_of()
    ids = tokens(300)
    with eager(model) as seen, torch.inference_mode():
        model(torch.tensor([ids]))
    assert seen.probabilities(0).sum(-1) == pytest.approx(1.0)
    with torch.inference_mode():
        assert close(eager_logits(model, ids), model(torch.tensor([ids])).logits[0])


def test_a_block_may_end_while_another_thread_calls_the_model():
    model = tiny("llama")
    first, second = plan_of(model, "random", SHORT), plan_of(model, "off", SHORT)
    alone = logits_under(model, first)
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with sift_attention(model, second):
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(30)

    def end_it(*_: object) -> None:
        leave.set()
        thread.join(30)

    # torch has listed the model's hooks by then, the other block's among them.
    with model.model.register_forward_pre_hook(end_it, prepend=True):
        assert torch.equal(logits_under(model, first), alone)
    assert not thread.is_alive()


def test_a_thread_started_inside_the_block_says_that_it_is_dense():
    model = model_of()
    plan = plan_of(model, "off")
    found: list[torch.Tensor] = []

    def call() -> None:
        with torch.no_grad():
            found.append(model(plan.input_ids).logits[0])

    with sift_attention(model, plan), pytest.warns(SiftWarning, match="another thread"):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert close(found[0], dense_logits(model, plan))
    with sift_attention(model, plan):
        thread = threading.Thread(target=contextvars.copy_context().run, args=(call,))
        thread.start()
        thread.join()
    assert torch.equal(found[1], logits_under(model, plan))


def test_ids_outside_the_vocabulary_are_refused_before_compute():
    model = model_of()
    plan = plan_of(model, "off")
    wrong = replace(plan, data=token_bytes([*plan.ids[:-1], 320]))
    with pytest.raises(PlanError, match="below the vocabulary size 320, found 320"):
        with sift_attention(model, wrong):
            pass
