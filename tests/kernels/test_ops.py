"""The custom operators: right, well-formed for PyTorch, and invisible to torch.compile."""

import pytest
import torch

from sift_index.kernels import ops
from sift_index.kernels.api import MaskLayout, device_plan, sparse_attention
from sift_index.kernels.reference import sparse_log_sum_exp
from tests.kernels.naive import random_plan

# Layouts and KV heads.
LAYOUTS = [
    (MaskLayout(2, 4, 4, 32), 2),
    (MaskLayout(2, 3, 1, 8, levels=2, boundary=64), 1),
    (MaskLayout(2, 2, 2, 128, boundary=0, neighbour=False), 2),
]
SEGMENTS = [("glue", 7), ("span", 520), ("span", 30), ("glue", 4), ("span", 140), ("glue", 9)]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def made(layout: MaskLayout, kv_heads: int, more=0, dtype=torch.float32, density=0.4):
    plan = random_plan(layout, SEGMENTS, seed=2, density=density)
    torch.manual_seed(3)
    heads = (layout.heads, kv_heads, kv_heads)
    tensors = [
        torch.randn(plan.length + more, h, 16, device=DEVICE).to(dtype).transpose(0, 1)
        for h in heads
    ]
    return plan, tensors


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=4e-6)


@pytest.mark.parametrize("layout, kv_heads", LAYOUTS, ids=str)
@pytest.mark.parametrize("row_start, more", [(0, 0), (200, 0), (300, 40), (900, 400)])
def test_operators_equal_the_reference(layout, kv_heads, row_start, more):
    plan, (q, k, v) = made(layout, kv_heads, more)
    q, decoded = q[:, row_start:], device_plan(plan, DEVICE)
    work = decoded.chunk(row_start, k.shape[1]).work
    out, lse = ops.sparse_attention(q, k, v, work, 1, with_lse=True)
    source = plan.to(DEVICE)
    close(out, sparse_attention(q, k, v, source, 1, row_start))
    close(lse, sparse_log_sum_exp(q, k, source, 1, row_start))
    without = ops.sparse_attention(q, k, v, work, 1, 0.3)
    close(without[0], sparse_attention(q, k, v, source, 1, row_start, 0.3))
    assert without[1].shape == (0,)


def arguments(dtype=torch.float32):
    # With all bits on, no row of a list is left as the memory was.
    plan, (q, k, v) = made(*LAYOUTS[0], dtype=dtype, density=1.0)
    decoded = device_plan(plan, DEVICE)
    lists = (k, v, decoded.page_start, decoded.page_length, decoded.offsets[1], plan.length, 32)
    work = decoded.chunk(0, plan.length).work
    values = {"dense": work.dense, "keys": plan.length}
    values |= {"layer": 1, "levels": 1, "neighbour": True, "scale": 0.2}
    k_list, v_list = ops.compact(*lists)
    tables = (work.row_tiles, work.counts[1], work.starts[1], work.bits)
    return lists, (q, k, v, k_list, v_list, *tables), values


def test_compact_is_a_well_formed_operator():
    torch.library.opcheck(torch.ops.sift.compact.default, arguments()[0])


@pytest.mark.parametrize("with_lse", [False, True])
def test_sparse_attention_is_a_well_formed_operator(with_lse):
    _, tensors, values = arguments()
    operator = torch.ops.sift.sparse_attention.default
    torch.library.opcheck(operator, tensors, {**values, "with_lse": with_lse})


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_without_a_graph_break(backend):
    torch._dynamo.reset()
    plan, (q, k, v) = made(*LAYOUTS[0])
    decoded = device_plan(plan, DEVICE)
    work = decoded.chunk(0, plan.length).work

    def two_layers(q, k, v, work):
        first, _ = ops.sparse_attention(q, k, v, work, 0)
        return ops.sparse_attention(first + q, k, v, work, 1, with_lse=True)

    compiled = torch.compile(two_layers, backend=backend, fullgraph=True)
    found, expected = compiled(q, k, v, work), two_layers(q, k, v, work)
    torch.testing.assert_close(found, expected)
    source = plan.to(DEVICE)
    close(found[0], sparse_attention(sparse_attention(q, k, v, source, 0) + q, k, v, source, 1))
