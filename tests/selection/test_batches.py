"""Batches: what shares a forward pass, that it changes nothing, and memory that runs out."""

import logging

import pytest
import torch

from sift_index.formats.masks import DocumentMasks
from sift_index.kernels.packed import Packed
from sift_index.selection.agreement import Agreement, level_agreement, mask_agreement
from sift_index.selection.batches import MOST_DOCUMENTS, cut_batches, launch_batches
from sift_index.selection.extractor import Extractor
from sift_index.selection.policy import PaperPolicy, ProbePolicy
from sift_index.selection.prefill import run_packed
from tests.plans import loaded, tiny, tokens
from tests.selection.observed import write_probes

PREFIX = tokens(11, seed=5)
LENGTHS = (5, 300, 129, 1, 260)
DOCUMENTS = [tokens(n, seed=n) for n in LENGTHS]


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> ProbePolicy:
    probes = write_probes(tmp_path_factory.mktemp("probes"))
    return ProbePolicy(window=16, probe_source=probes, probe_tokens=200, la_dense_tiles=1)


def extractor(policy, model_type: str = "llama") -> Extractor:
    return Extractor(loaded(tiny(model_type)), policy, PREFIX)


def masks_of(found) -> list[list[DocumentMasks]]:
    return [launched.result() for _, launched in found]


def lengths_of(found) -> list[list[int]]:
    return [[len(ids) for ids in batch] for batch in found]


def test_batches_stay_within_the_budget_and_in_order():
    assert lengths_of(cut_batches(DOCUMENTS, 300)) == [[5], [300], [129, 1], [260]]
    assert lengths_of(cut_batches(DOCUMENTS, 10_000)) == [list(LENGTHS)]
    assert lengths_of(cut_batches(DOCUMENTS, 1)) == [[n] for n in LENGTHS]
    assert list(cut_batches([], 5)) == []


def test_a_batch_has_a_number_of_documents_that_kernels_can_count():
    many = [[1]] * (MOST_DOCUMENTS + 3)
    assert [len(batch) for batch in cut_batches(many, 10**9)] == [MOST_DOCUMENTS, 3]


@pytest.mark.parametrize("model_type", ["llama", "minimax_m2"])
def test_documents_in_a_batch_score_as_each_alone(policy, model_type):
    """Matrix products of other shapes may round in another way: all but ties are equal."""
    made = extractor(policy, model_type)
    alone = [made.scores(ids) for ids in DOCUMENTS]
    (masks,) = masks_of(launch_batches(made, DOCUMENTS, 10_000))
    assert [row.la is not None for row in masks] == [False, True, True, False, True]
    for scores, row in zip(alone, masks, strict=True):
        for kind, thresholds in (("ca", policy.ca_levels), ("la", policy.la_levels)):
            mask = getattr(row, kind)
            if mask is None:
                continue
            truth = torch.stack([getattr(layer, kind) for layer in scores.layers])
            found = torch.from_numpy(mask.unpacked()).float()  # 1 where it exceeds a threshold
            agreement = level_agreement(truth, found, thresholds, 1e-4)
            assert agreement.errors == 0
            assert agreement.entries == truth.numel() > 0


def test_the_paper_rule_in_a_batch_is_each_document_alone():
    made = extractor(PaperPolicy(alpha=0.02, beta=0.02, gamma=0.03))
    (rows,) = masks_of(launch_batches(made, DOCUMENTS, 10_000))
    assert rows == [made.extract(ids) for ids in DOCUMENTS]


def test_the_same_batches_give_the_same_bytes(policy):
    first, second = (masks_of(launch_batches(extractor(policy), DOCUMENTS, 310)) for _ in range(2))
    assert first == second


class Cramped(Extractor):
    """An extractor on a device with room for so many tokens."""

    room = 400

    def launch(self, documents):
        if sum(map(len, documents)) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().launch(documents)


def test_a_batch_that_does_not_fit_is_halved_with_one_line_in_the_log(policy, caplog):
    made = Cramped(loaded(tiny("llama")), policy, PREFIX)
    with caplog.at_level(logging.WARNING, "sift_index.selection"):
        found = list(launch_batches(made, DOCUMENTS, 10_000))
    assert lengths_of(batch for batch, _ in found) == [[5, 300], [129, 1, 260]]
    rows = [row for rows in masks_of(found) for row in rows]
    assert [row.tokens for row in rows] == list(LENGTHS)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert "5 documents of 695 tokens" in lines[0]


def test_a_document_that_does_not_fit_by_itself_is_left_out(policy):
    made = Cramped(loaded(tiny("llama")), policy, PREFIX)
    made.room = 270
    found = {len(batch[0]): launched for batch, launched in launch_batches(made, DOCUMENTS, 1)}
    assert [n for n, launched in found.items() if launched is None] == [300]


def test_other_errors_are_not_taken_for_lack_of_memory(policy):
    made = Cramped(loaded(tiny("llama")), policy, PREFIX)
    with pytest.raises(ValueError, match="broken"):
        made.launch = lambda documents: (_ for _ in ()).throw(ValueError("broken"))  # type: ignore[method-assign]
        list(launch_batches(made, DOCUMENTS, 10_000))


def test_a_pass_ends_behind_the_last_layer_observed():
    model, seen, mlps = tiny("llama", num_hidden_layers=4), [], []
    for layer in model.model.layers:
        layer.mlp.register_forward_hook(lambda *_: mlps.append(1))
    run_packed(model, PREFIX, DOCUMENTS, lambda layer, *_: seen.append(layer), 1)
    assert (seen, len(mlps)) == ([0, 1], 1)
    # What it left in the middle still works.
    run_packed(model, PREFIX, DOCUMENTS, lambda layer, *_: seen.append(layer))
    assert (seen, len(mlps)) == ([0, 1, 0, 1, 2, 3], 5)
    assert model.config._attn_implementation != "sift"
    with torch.inference_mode():
        assert model(torch.tensor([[1, 2, 3]])).logits.isfinite().all()


def test_observers_see_the_packed_sequence():
    model, shapes = tiny("llama"), []
    run_packed(
        model, PREFIX, DOCUMENTS, lambda layer, q, k, lse, scale: shapes.append((q.shape, k.shape))
    )
    total = Packed(11, LENGTHS).total
    assert shapes == [((4, total, 16), (2, total, 16))] * 2


def test_agreement_tells_ties_from_errors():
    truth = torch.tensor([0.1, 0.5, 0.29999, 0.7])
    found = torch.tensor([0.1, 0.5, 0.30001, 0.2])
    agreement = level_agreement(truth, found, (0.3,), 1e-3)
    assert agreement == Agreement(entries=4, differing=2, ties=1)
    assert (agreement.errors, agreement.share) == (1, 0.5)


def test_masks_of_one_scoring_agree_with_themselves(policy):
    scores = [extractor(policy).scores(ids) for ids in DOCUMENTS[:2]]
    agreement = mask_agreement(scores, scores, policy, 1e-6)
    # 2 layers x 4 heads x (1 + 10 pages, and 6 tiles of the longer one)
    assert (agreement.entries, agreement.differing) == (8 * 17, 0)
