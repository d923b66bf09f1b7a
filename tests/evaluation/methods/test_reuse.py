"""Methods that reuse KV against a partial recompute by hand, and densities against full masks."""

from functools import cache

import numpy as np
import pytest
import torch

from sift_index.adapters.hf_calls import cache_argument, cache_of
from sift_index.errors import PlanError, UsageError
from sift_index.evaluation.forcing import prefilled
from sift_index.evaluation.methods.reuse import cacheblend, epic, kv_reuse
from sift_index.evaluation.methods.stored import KVStore
from sift_index.evaluation.methods.treatment import Dense
from sift_index.kernels.api import Cells
from sift_index.models.support import TESTED_TYPES
from sift_index.prompts import Segment
from tests.evaluation.methods.partial import Partial, pairs_of
from tests.plans import loaded, tiny, tokens
from tests.selection.test_memory import Largest

A, B = tokens(70), tokens(45)
# One document twice, one directly behind another, glue between and around, one shorter than EPIC's.
PROMPT = [
    Segment(tokens(9, seed=2), glue=True),
    Segment(A),
    Segment(B),
    Segment(tokens(3, seed=3), glue=True),
    Segment(tokens(5)),
    Segment(A),
    Segment(tokens(21, seed=4), glue=True),
]
SPANS = [(9, 79), (79, 124), (127, 132), (132, 202)]
ONE = [PROMPT[0], PROMPT[1], PROMPT[-1]]
LENGTH, LAYERS = 223, 3
IDS = torch.tensor([[i for part in PROMPT for i in part.ids]])


@cache
def model_of(model_type: str = "llama"):
    return tiny(model_type, num_hidden_layers=LAYERS)


def run(model, treatment, prompt=PROMPT):
    """Return logits [L, vocabulary] and the cache's K and V of every layer."""
    ids = torch.tensor([[i for part in prompt for i in part.ids]])
    with torch.inference_mode(), treatment.attention(model):
        output = model(ids, use_cache=True)
    return output.logits[0].double(), pairs_of(cache_of(output))


def dense(model, prompt=PROMPT):
    return run(model, Dense(), prompt)


def fresh_of(recomputed: int) -> np.ndarray:
    """Return bool [L]: glue, and the first `recomputed` tokens of every document."""
    fresh = np.ones(LENGTH, dtype=bool)
    for start, stop in SPANS:
        fresh[start + recomputed : stop] = False
    return fresh


def blended(model, share: float) -> np.ndarray:
    """Return bool [L]: glue, and the document tokens whose KV of layer 1 deviates most."""
    by_hand = Partial(model, PROMPT, SPANS)
    (k, v), (stored_k, stored_v) = by_hand.dense[1], by_hand.stored[1]
    deviation = (((k - stored_k) ** 2).sum((0, 2)) + ((v - stored_v) ** 2).sum((0, 2))).numpy()
    deviation[by_hand.owner < 0] = -1.0
    order = np.argsort(-deviation)
    count = round(share * sum(stop - start for start, stop in SPANS))
    if 0 < count < 190:  # no near tie, so the expected tokens are clear
        assert deviation[order[count - 1]] > deviation[order[count]] * 1.0001
    fresh = fresh_of(0)
    fresh[order[:count]] = True
    return fresh


def close(a, b, limit: float = 2e-4) -> bool:
    return (a - b).abs().max().item() < limit


def assert_is_partial(model, treatment, fresh: np.ndarray) -> None:
    """The fresh tokens' logits and the whole cache are those of a partial recompute."""
    by_hand = Partial(model, PROMPT, SPANS)
    expected = by_hand.run(fresh)
    logits, pairs = run(model, treatment)
    assert close(logits[fresh], expected[fresh])
    for found, wanted in zip(pairs, pairs_of(by_hand.cache), strict=True):
        assert close(found[0], wanted[0])
        assert close(found[1], wanted[1])
    assert not close(logits[-21:], dense(model)[0][-21:], 1e-2)


@pytest.mark.parametrize("model_type", TESTED_TYPES)
def test_kv_reuse_is_a_query_over_a_cache_of_documents_run_apart(model_type):
    model = model_of(model_type)
    assert_is_partial(model, kv_reuse(loaded(model))(PROMPT), fresh_of(0))


@pytest.mark.parametrize("model_type", ["llama", "minimax_m2"])
@pytest.mark.parametrize("recomputed", [1, 16])
def test_epic_recomputes_the_first_tokens_of_every_document(model_type, recomputed):
    model = model_of(model_type)
    assert_is_partial(model, epic(loaded(model), recomputed)(PROMPT), fresh_of(recomputed))


@pytest.mark.parametrize("model_type", ["llama", "minimax_m2", "qwen3"])
@pytest.mark.parametrize("share", [0.0, 0.305, 0.5])
def test_cacheblend_recomputes_the_tokens_that_deviate_most(model_type, share):
    model = model_of(model_type)
    fresh = blended(model, share)
    assert_is_partial(model, cacheblend(loaded(model), share)(PROMPT), fresh)
    if share == 0.305:  # over all documents together: the first one's KV is right as it is
        assert fresh[9:79].sum() == 0
        assert fresh_of(0).sum() + 58 == fresh.sum()


def test_cacheblend_overwrites_the_same_tokens_in_every_later_layer():
    model = model_of()
    _, pairs = run(model, cacheblend(loaded(model), 0.305)(PROMPT))
    by_hand = Partial(model, PROMPT, SPANS)
    later = by_hand.owner > 0  # stored KV of the first document is the dense one
    apart = [
        (found[0] - kept[0]).abs().amax((0, 2)).numpy()[later] > 1e-4
        for found, kept in zip(pairs, by_hand.stored, strict=True)
    ]
    expected = blended(model, 0.305)[later]
    assert [part.sum() for part in apart] == [0, 58, 58]
    assert (apart[1] == expected).all()
    assert (apart[2] == expected).all()


@pytest.mark.parametrize("model_type", ["llama", "minimax_m2"])
@pytest.mark.parametrize(
    ("make", "prompt"),
    [
        (kv_reuse, ONE),
        (lambda model: epic(model, 70), PROMPT),
        (lambda model: cacheblend(model, 1.0), PROMPT),
    ],
    ids=["kv-reuse of one document", "epic of all tokens", "cacheblend of all tokens"],
)
def test_what_equals_dense(model_type, make, prompt):
    model = model_of(model_type)
    logits, pairs = run(model, make(loaded(model))(prompt), prompt)
    expected, dense_pairs = dense(model, prompt)
    rows = slice(-21, None) if prompt is ONE else slice(None)  # others compute what nobody reads
    assert close(logits[rows], expected[rows], 1e-5)
    for found, wanted in zip(pairs, dense_pairs, strict=True):
        assert close(found[0], wanted[0], 1e-5)
        assert close(found[1], wanted[1], 1e-5)


def test_cacheblend_of_a_one_layer_model_is_dense():
    model = tiny("llama", num_hidden_layers=1)
    treatment = cacheblend(loaded(model), 0.0)(PROMPT)
    assert close(run(model, treatment)[0], dense(model)[0], 1e-5)
    assert treatment.density.total.share == 1.0
    assert not close(run(model, kv_reuse(loaded(model))(PROMPT))[0][-21:], 0.0)


def test_a_document_at_position_0_is_glue():
    model = model_of()
    prompt = [Segment(A), Segment(B), PROMPT[-1]]
    treatment = kv_reuse(loaded(model))(prompt)
    logits, expected = run(model, treatment, prompt)[0], dense(model, prompt)[0]
    fresh = [*range(70), *range(115, 136)]
    assert close(logits[fresh], expected[fresh], 1e-5)
    assert treatment.density.la == Cells(0, LAYERS * 4 * 45 * 46 // 2)
    assert treatment.density.ca == Cells(0, 0)


@pytest.mark.parametrize("make", [kv_reuse, lambda model: cacheblend(model, 0.2)])
def test_a_prompt_without_documents_is_dense(make):
    assert isinstance(make(loaded(model_of()))([PROMPT[0], Segment([]), PROMPT[-1]]), Dense)


def test_keys_are_stored_and_reused_in_the_dtype_of_the_model():
    model = tiny("llama").bfloat16()
    ids = torch.tensor([[i for part in ONE for i in part.ids]])
    treatment = kv_reuse(loaded(model))(ONE)
    with torch.inference_mode(), treatment.attention(model):
        output = model(ids, use_cache=True)
    with torch.inference_mode():
        expected = model(ids).logits[0, -21:]
    assert cache_of(output).layers[1].keys.dtype == torch.bfloat16
    assert close(output.logits[0, -21:], expected, 0.05)


# --- behind the prompt -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["kv-reuse", "epic", "cacheblend"])
def test_answers_are_decoded_over_the_partly_stored_cache(name):
    model = model_of()
    make = {
        "kv-reuse": (kv_reuse(loaded(model)), fresh_of(0)),
        "epic": (epic(loaded(model), 8), fresh_of(8)),
        "cacheblend": (cacheblend(loaded(model), 0.305), blended(model, 0.305)),
    }
    method, fresh = make[name]
    answer = [5, 99, 7, 31]
    by_hand = Partial(model, PROMPT, SPANS)
    last = by_hand.run(fresh)[-1:]
    expected = torch.cat((last, by_hand.step(torch.tensor(answer[:-1]))))
    treatment = method(PROMPT)
    with prefilled(model, IDS, treatment.attention(model)) as opened:
        density = treatment.density
        greedy = opened.greedy(6)
        assert close(opened.forced(answer).double(), expected)
        assert opened.greedy(6) == greedy
        assert treatment.density == density  # of the prompt alone, whatever came behind it
    by_hand = Partial(model, PROMPT, SPANS)
    logits = by_hand.run(fresh)[-1]
    chosen: list[int] = []
    while len(chosen) < len(greedy):
        chosen.append(int(logits.argmax()))
        logits = by_hand.step(torch.tensor(chosen[-1:]))[-1]
    assert greedy == chosen
    assert len(greedy) > 1


def test_a_prompt_with_its_answer_in_one_call():
    model = model_of()
    longer = [*PROMPT, Segment([5, 99, 7], glue=True)]
    treatment = kv_reuse(loaded(model))(PROMPT)
    logits = run(model, treatment, longer)[0]
    by_hand = Partial(model, PROMPT, SPANS)
    by_hand.run(fresh_of(0))
    assert close(logits[-3:], by_hand.step(torch.tensor([5, 99, 7])))
    assert treatment.density.total.causal == LAYERS * 4 * LENGTH * (LENGTH + 1) // 2


@pytest.mark.parametrize("first", [1, 100, LENGTH - 1])
def test_a_chunked_prefill_is_refused(first):
    model = model_of()
    with torch.inference_mode():
        filled = cache_of(model(IDS[:, :first], use_cache=True))
        treatment = kv_reuse(loaded(model))(PROMPT)
        with treatment.attention(model):
            with pytest.raises(PlanError, match=rf"223 tokens in one call, found {first} behind 0"):
                model(IDS[:, :first])
            call = {cache_argument(model): filled}
            message = rf"found {LENGTH - first} behind {first} cached"
            with pytest.raises(PlanError, match=message):
                model(IDS[:, first:], **call)


def test_a_treatment_may_be_prefilled_again():
    model = model_of()
    treatment = cacheblend(loaded(model), 0.305)(PROMPT)
    logits, density = run(model, treatment)[0], None
    for _ in range(2):
        assert torch.equal(run(model, treatment)[0], logits)
        assert density in (None, treatment.density)
        density = treatment.density


def test_the_model_is_its_own_again_behind_the_block():
    model = model_of()
    before = dense(model)[0]
    run(model, kv_reuse(loaded(model))(PROMPT))
    assert torch.equal(dense(model)[0], before)


# --- density -----------------------------------------------------------------------------------


def counted(fresh: np.ndarray) -> dict[str, Cells]:
    """Count [layers, L] of recomputed rows in full masks of visited and causal cells."""
    owner = Partial(model_of(), PROMPT, SPANS).owner
    causal = np.tri(LENGTH, dtype=bool)
    document = (owner[:, None] >= 0) & (owner[None] >= 0) & causal
    own = document & (owner[:, None] == owner[None])
    cross = document & (owner[:, None] > owner[None]) & (owner[:, None] > 0)
    found = {}
    for name, cells in (("total", causal), ("la", own), ("ca", cross)):
        visited = sum(int((cells & rows[:, None]).sum()) for rows in fresh)
        found[name] = Cells(4 * visited, 4 * LAYERS * int(cells.sum()))
    return found


@pytest.mark.parametrize("name", ["kv-reuse", "epic", "cacheblend"])
def test_density_counts_the_cells_of_recomputed_rows(name):
    model = model_of()
    everything = np.ones(LENGTH, dtype=bool)
    blend = blended(model, 0.305)
    make = {
        "kv-reuse": (kv_reuse(loaded(model)), [fresh_of(0)] * LAYERS),
        "epic": (epic(loaded(model), 8), [fresh_of(8)] * LAYERS),
        "cacheblend": (cacheblend(loaded(model), 0.305), [everything, blend, blend]),
    }
    method, fresh = make[name]
    treatment = method(PROMPT)
    with pytest.raises(PlanError, match="expected a prefilled prompt"):
        _ = treatment.density
    run(model, treatment)
    found = treatment.density
    assert {"total": found.total, "la": found.la, "ca": found.ca} == counted(np.stack(fresh))
    assert 0 < found.total.share < 1
    assert treatment.plan is None


# --- the store ---------------------------------------------------------------------------------


class Forwards:
    """Counts the token numbers of a model's forward calls."""

    def __init__(self, model) -> None:
        self.lengths: list[int] = []
        self._hook = model.base_model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, module, args, kwargs) -> None:
        self.lengths.append(kwargs["input_ids"].shape[1])

    def __enter__(self) -> "Forwards":
        return self

    def __exit__(self, *error: object) -> None:
        self._hook.remove()


def test_a_document_runs_once_for_each_leading_glue():
    model = model_of()
    method = kv_reuse(loaded(model))
    with Forwards(model) as forwards:
        method(PROMPT)
        assert forwards.lengths == [79, 54, 14]
        method([PROMPT[0], PROMPT[2], PROMPT[1]])
        assert len(forwards.lengths) == 3
        method([Segment(tokens(9, seed=7), glue=True), PROMPT[1]])
        assert forwards.lengths[3:] == [79]


def test_the_store_drops_what_was_not_used_for_longest():
    model = loaded(model_of())
    glue, documents = tokens(9), [tokens(20, seed=s) for s in range(3)]
    # Two documents of 20 tokens fit: 3 layers of 2 KV heads, K and V of 16 float32 each.
    store = KVStore(model, most_bytes=2 * 20 * LAYERS * 2 * 2 * 16 * 4)
    with Forwards(model.model) as forwards:
        for number in (0, 1, 0, 2, 0):
            store.get(glue, documents[number])
        assert len(forwards.lengths) == 3
        store.get(glue, documents[1])
        assert len(forwards.lengths) == 4
        kept = store.get(glue, tokens(100))  # larger than the bound, and still of use
        assert kept.nbytes == 100 * LAYERS * 2 * 2 * 16 * 4
        assert store.get(glue, tokens(100)) is kept
        assert len(forwards.lengths) == 5


def test_no_square_of_the_prompt_is_computed():
    model = model_of()
    prompt = [PROMPT[0], Segment(tokens(700)), Segment(tokens(800)), PROMPT[-1]]
    ids = torch.tensor([[i for part in prompt for i in part.ids]])
    with Largest() as largest, torch.inference_mode():
        with kv_reuse(loaded(model))(prompt).attention(model):
            model(ids, logits_to_keep=1)
    assert largest.numel < ids.shape[1] ** 2 / 8


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_outside_0_to_1_is_refused(share):
    with pytest.raises(UsageError, match="expected a share of 0 to 1"):
        cacheblend(loaded(model_of()), share)


def test_a_negative_number_of_tokens_is_refused():
    with pytest.raises(UsageError, match="number of tokens from 0, found -1"):
        epic(loaded(model_of()), -1)
