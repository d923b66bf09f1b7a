"""Batches packed for kernels: views where memory allows them, and what attends in one launch."""

from typing import Any

import pytest
import torch

from sift_index.adapters import sparse_handler
from sift_index.adapters.packed_prompts import packed_keys, packed_queries
from sift_index.adapters.prompt_rows import PlannedPrompt
from sift_index.adapters.sparse_handler import SparseHandler
from sift_index.adapters.transformers import batch_inputs
from sift_index.kernels.api import PlanBatch, attend_batch
from tests.adapters.test_batches import MODEL, OTHER
from tests.adapters.test_transformers import PROMPT, SHORT, plan_of

BATCH, KV, TOKENS, DIM = 3, 2, 7, 4
# Which prompts run densely.
SPARSE, MIXED = (False, False, False), (False, True, False)
# Memory of [B, kv_heads, N, D], and whether all keys have one view.
MEMORY = {
    "tokens": (lambda: torch.randn(BATCH, TOKENS, KV, DIM).transpose(1, 2), TOKENS),
    "heads": (lambda: torch.randn(BATCH, KV, TOKENS, DIM), KV * TOKENS),
    "joined": (lambda: torch.randn(BATCH, TOKENS, 3, KV, DIM)[:, :, 1].transpose(1, 2), TOKENS),
    "room behind": (lambda: torch.randn(BATCH, KV, 9, DIM)[:, :, :TOKENS], KV * 9),
    "one token": (lambda: torch.randn(BATCH, KV, TOKENS, DIM)[:, :, :1], None),
    "no whole step": (
        lambda: torch.randn(99).as_strided((BATCH, KV, 3, DIM), (25, 12, DIM, 1)), None
    ),
}  # fmt: skip


@pytest.mark.parametrize("memory, step", MEMORY.values(), ids=MEMORY)
def test_keys_are_rows_of_one_view(memory, step):
    k, v = memory(), memory()
    packed = packed_keys(k, v)
    for x, found in ((k, packed.k), (v, packed.v)):
        for prompt in range(BATCH):
            first = prompt * packed.step
            assert torch.equal(found[:, first : first + x.shape[2]], x[prompt])
        assert (found.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()) is (
            step is not None
        )
    assert packed.step == (k.shape[2] if step is None else step)


def test_keys_and_values_in_different_memory_are_copied():
    k, v = MEMORY["tokens"][0](), MEMORY["heads"][0]()
    packed = packed_keys(k, v)
    assert packed.step == TOKENS
    assert torch.equal(packed.v.unflatten(1, (BATCH, TOKENS)).transpose(0, 1), v)


@pytest.mark.parametrize("memory, copied", [("tokens", False), ("heads", True)])
def test_queries_are_copied_only_from_head_major_memory(memory, copied):
    q = MEMORY[memory][0]()
    found = packed_queries(q)
    assert torch.equal(found.unflatten(1, (BATCH, TOKENS)).transpose(0, 1), q)
    assert (found.data_ptr() != q.data_ptr()) is copied


@pytest.fixture(scope="module")
def plans():
    return [plan_of(MODEL, "random", prompt) for prompt in (SHORT, OTHER, PROMPT)]


class Call:
    """One call of a model without layers: a handler that has seen it, and tensors of a layer."""

    def __init__(self, plans, dense: tuple[bool, ...], memory: str) -> None:
        self.prompts = [PlannedPrompt(*pair) for pair in zip(plans, dense, strict=True)]
        self.handler = SparseHandler(self.prompts)
        inputs = batch_inputs(plans, 0)
        batch, columns = inputs["input_ids"].shape
        self.handler._begin_rows(inputs["input_ids"], (batch, columns), inputs["attention_mask"])
        torch.manual_seed(0)
        layout = plans[0].sparse.layout
        self.made = []
        for heads in (layout.heads, KV, KV):
            x = torch.randn(batch, columns, heads, 16).transpose(1, 2)
            self.made.append(x.contiguous() if memory == "heads" else x)

    def attend(self) -> torch.Tensor:
        q, k, v = self.made
        return self.handler.attend_batch(1, q, k, v, 0.2)

    def alone(self, number: int) -> tuple[int, torch.Tensor]:
        """Return a prompt's padding, and its rows as they are without the others."""
        prompt = self.prompts[number]
        pad = self.made[0].shape[2] - prompt.plan.length
        q, k, v = (x[number, :, pad:] for x in self.made)
        return pad, prompt.attend(1, q, k, v, 0, 0.2).transpose(0, 1)


# Triton's interpreter is slow: one case shows that a view's strides reach the kernels.
CASES = [(d, m, "reference") for d in (SPARSE, MIXED) for m in ("tokens", "heads")]


@pytest.mark.parametrize("dense, memory, path", [*CASES, (MIXED, "heads", "triton")], ids=str)
def test_prompts_attend_together_as_they_do_alone(dense, memory, path, plans, monkeypatch):
    if path == "triton":
        pytest.importorskip("triton")
    monkeypatch.setenv("SIFT_ATTENTION", path)
    calls: list[Any] = []

    def recorded(*arguments: Any) -> torch.Tensor:
        calls.append(arguments)
        return attend_batch(*arguments)

    monkeypatch.setattr(sparse_handler, "attend_batch", recorded)
    call = Call(plans, dense, memory)
    out = call.attend()
    assert out.is_contiguous() and len(calls) == 1
    batch: PlanBatch = calls[0][3]
    assert len(batch.parts) == dense.count(False)
    for number in range(3):
        pad, rows = call.alone(number)
        assert torch.equal(out[number, pad:], rows)
        assert (out[number, :pad] == 0).all()
    # The next layer takes the same tables.
    call.attend()
    assert calls[1][3] is batch


def test_one_sparse_prompt_attends_by_itself(plans, monkeypatch):
    monkeypatch.setattr(sparse_handler, "attend_batch", None)
    call = Call(plans, (True, False, True), "tokens")
    out = call.attend()
    pad, rows = call.alone(1)
    assert torch.equal(out[1, pad:], rows)
