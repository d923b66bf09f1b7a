"""LA masks of fewer keys an entry: at 128 they are the reference's, below they are its subsets."""

from itertools import pairwise

import pytest
import torch

from benchmarks.study_la_keys import FinerLocal, LongDocuments, OwnKeys, entry_scores, study
from sift_index.errors import UsageError
from sift_index.evaluation.forcing import prefilled
from sift_index.evaluation.methods.masks import extracted
from sift_index.evaluation.methods.registry import Setting
from sift_index.kernels.api import (
    TILE,
    MaskLayout,
    SpanMask,
    SparsePlan,
    local_scores,
    plan_density,
    sparse_attention,
)
from sift_index.kernels.bits import pack
from sift_index.prompts import Segment
from sift_index.selection.policy import ProbePolicy
from tests.plans import loaded, tiny, tokens

HEADS, KV, DIM, SCALE = 4, 2, 16, 0.25
START, LENGTH, STOP = 9, 690, 720  # of the document, of it, and of the prompt
TILES = 6
LAYOUT = MaskLayout(layers=1, heads=HEADS, mask_heads=HEADS, page_size=32)
POLICY = ProbePolicy(la_dense_tiles=2, la_thresholds=(0.0015,))


def tensors(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows)
    q, k, v = (torch.randn(h, rows, DIM) * 2 for h in (HEADS, KV, KV))
    return q, k, v


def document_scores() -> dict[int, torch.Tensor]:
    q, k, _ = tensors(LENGTH)
    lse = torch.full((HEADS, LENGTH), 8.0)
    return entry_scores(q, k, lse, POLICY, SCALE)


def plan(la: torch.Tensor | None) -> SparsePlan:
    ca = torch.zeros(1, HEADS, 3, dtype=torch.uint8)
    return SparsePlan(LAYOUT, STOP, (SpanMask(START, START + LENGTH, ca, la),))


def triangle(on: torch.Tensor) -> torch.Tensor:
    """Pack bool [heads, tiles, tiles] as an index stores it."""
    values = on[:, torch.ones(TILES, TILES, dtype=torch.bool).tril()].to(torch.uint8)
    return pack(torch.nn.functional.pad(values, (0, -values.shape[-1] % 8)), 1)[None]


def test_entries_of_128_keys_have_the_statistic_of_tiles():
    q, k, _ = tensors(LENGTH)
    lse = torch.full((HEADS, LENGTH), 8.0)
    expected = local_scores(q, k, lse, POLICY.la_window, POLICY.page_size, SCALE)
    lower = torch.ones(TILES, TILES, dtype=torch.bool).tril()
    found = document_scores()[128]
    assert torch.equal(found[:, lower], expected)
    assert not found[:, ~lower].any()


@pytest.mark.parametrize("keys", [64, 32])
def test_an_entry_is_the_maximum_of_its_parts(keys):
    scores = document_scores()
    parts = scores[keys].unflatten(-1, (-1, 128 // keys))
    assert torch.equal(parts.amax(-1), scores[128])


def test_entries_of_16_keys_are_halves_of_a_page():
    scores = document_scores()
    # Whole pages only: those of the last, short tile have fewer keys in one half.
    halves = scores[16][:, :-1].unflatten(-1, (-1, 2)).mean(-1)
    assert torch.allclose(halves, scores[32][:, :-1])


def test_at_128_keys_outputs_and_densities_are_those_of_the_reference():
    scores = document_scores()[128]
    threshold = float(scores[scores > 0].median())
    stored = plan(triangle(scores > threshold))
    treated = FinerLocal(plan(None), OwnKeys.of([scores], 128, threshold))
    q, k, v = tensors(STOP)
    found, expected = treated.attend(0, q, k, v, SCALE), sparse_attention(q, k, v, stored, 0)
    assert torch.allclose(found, expected, atol=1e-6)
    dense = sparse_attention(q, k, v, plan(None), 0)
    assert not torch.allclose(found, dense, atol=1e-2)
    assert treated.density == plan_density(stored)
    assert 0.4 < treated.density.la.share < 0.9


@pytest.mark.parametrize("keys", [64, 32, 16])
def test_finer_entries_are_what_a_mask_written_down_cell_by_cell_says(keys):
    scores = document_scores()[keys]
    threshold = float(scores[scores > 0].quantile(0.7))
    treated = FinerLocal(plan(None), OwnKeys.of([scores], keys, threshold))
    mask = torch.ones(HEADS, STOP, STOP, dtype=torch.bool).tril()
    for row in range(LENGTH):
        tile, key = row // TILE, torch.arange(LENGTH)
        near = key // TILE >= tile - 1
        on = near | (scores[:, tile].repeat_interleave(keys, -1)[:, :LENGTH] > threshold)
        mask[:, START + row, START : START + LENGTH] &= on
    q, k, v = tensors(STOP)
    whole = (q @ k.repeat_interleave(2, 0).mT * SCALE).masked_fill(~mask, float("-inf"))
    expected = whole.softmax(-1) @ v.repeat_interleave(2, 0)
    assert torch.allclose(treated.attend(0, q, k, v, SCALE), expected, atol=1e-5)
    own = slice(START, START + LENGTH)
    assert treated.density.la.visited == int(mask[:, own, own].sum())
    assert treated.density.total.visited == int(mask.sum())


def test_rows_behind_the_prompt_are_dense():
    treated = FinerLocal(plan(None), OwnKeys.of([document_scores()[16]], 16, 0.5))
    q, k, v = tensors(STOP)
    expected = sparse_attention(q, k, v, plan(None), 0)[:, -1:]
    assert torch.allclose(treated.attend(0, q[:, -1:], k, v, SCALE), expected, atol=1e-6)


def test_a_model_at_128_keys_is_the_default_and_finer_keys_are_fewer():
    model = loaded(tiny("llama", num_hidden_layers=3))
    prefix = tokens(START)
    prompt = [
        Segment(prefix, glue=True), Segment(tokens(LENGTH, seed=1)), Segment(tokens(21), glue=True)
    ]  # fmt: skip
    ids = torch.tensor([[i for part in prompt for i in part.ids]])
    documents, logits = LongDocuments(model, POLICY, prefix), []
    threshold = POLICY.la_thresholds[0]
    treatments = [documents.method(keys, threshold)(prompt) for keys in (128, 64, 32)]
    default = extracted(model, POLICY, prefix)(prompt)
    for treatment in (treatments[0], default):
        with prefilled(model.model, ids, treatment.attention(model.model)) as opened:
            logits.append(opened.last)
    assert torch.allclose(logits[0], logits[1], atol=1e-4)
    shares = [treatment.density.la.visited for treatment in treatments]
    assert shares[0] == default.density.la.visited
    assert all(coarse > fine for coarse, fine in pairwise(shares))


def test_prompts_of_several_documents_are_refused():
    model = loaded(tiny("llama"))
    method = study(Setting(model), POLICY).methods["32 keys@0.0002"]
    prompt = [Segment(tokens(9), glue=True), Segment(tokens(300)), Segment(tokens(200))]
    with pytest.raises(UsageError, match="one document, found 2"):
        method(prompt)
