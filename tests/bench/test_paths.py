"""How contenders are called: paths by force, peers by their own interfaces."""

import os
import sys
from types import ModuleType

import pytest
import torch

from sift_index.bench.cases import Case
from sift_index.bench.flex import flex_attention_run
from sift_index.bench.paths import chosen_paths, compaction, forced, path
from sift_index.bench.peers import PEERS
from sift_index.errors import UsageError
from sift_index.kernels.api import sparse_attention
from tests.bench.problems import dense, problem_of

CASE = Case(520, 64, 130, 0.3)


def test_a_path_is_forced_for_the_call_alone(monkeypatch):
    monkeypatch.delenv("SIFT_ATTENTION", raising=False)
    with forced("triton"):
        assert os.environ["SIFT_ATTENTION"] == "triton"
    assert "SIFT_ATTENTION" not in os.environ
    monkeypatch.setenv("SIFT_ATTENTION", "auto")
    with pytest.raises(ZeroDivisionError), forced("reference"):
        _ = 1 / 0
    assert os.environ["SIFT_ATTENTION"] == "auto"


def test_a_path_runs_all_of_sparse_attention():
    problem = problem_of(CASE)
    q, k, v = problem.inputs.by_head()
    expected = sparse_attention(q, k, v, problem.plan.source, 0)
    assert torch.equal(path("reference").build(problem)(), expected)


def test_a_path_that_dispatch_refuses_raises():
    with pytest.raises(UsageError, match="SIFT_ATTENTION"):
        path("no-such-path").build(problem_of(CASE))()


def test_paths_are_taken_from_a_table():
    assert [p.name for p in chosen_paths(["triton", "reference", "triton"])] == [
        *("triton", "reference")
    ]
    assert [p.name for p in chosen_paths(["mine"], known=["mine"])] == ["mine"]
    assert [p.name for p in chosen_paths(None, ["mine", "reference"])] == ["mine"]
    assert "triton" in [p.name for p in chosen_paths(None)]
    with pytest.raises(UsageError, match="--paths: expected some of a, b, found 'c'"):
        chosen_paths(["a", "c"], known=["a", "b"])
    with pytest.raises(UsageError, match="--paths: expected some of .*, found none"):
        chosen_paths([])


def test_compaction_copies_the_keys_of_every_list():
    problem = problem_of(CASE)
    _, k, _ = problem.inputs.by_head()
    lists = compaction(problem)()
    last = problem.plan.source.spans[-1].start
    assert lists.shape == (4, last, 64)
    page = problem.plan.page_length[0]
    assert torch.equal(lists[3, :page], k[1, :page])  # glue in front, in every list


def test_fa3_sees_tokens_outermost(monkeypatch):
    seen: dict[str, object] = {}

    def flash_attn_func(q, k, v, causal, softmax_scale):
        assert softmax_scale is None
        seen.update(q=q.shape, k=k.shape, v=v.shape, causal=causal)
        return q, None

    interface = ModuleType("fa3_fwd_interface")
    monkeypatch.setattr(interface, "flash_attn_func", flash_attn_func, raising=False)
    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", interface)
    problem = problem_of(CASE)
    out = PEERS[0].build(problem)()
    assert torch.equal(out, problem.inputs.q.transpose(0, 1))
    assert seen == {
        "q": (1, 520, 4, 64),
        "k": (1, 520, 2, 64),
        "v": (1, 520, 2, 64),
        "causal": True,
    }


def test_fa3_may_be_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", None)
    with pytest.raises(ImportError):
        PEERS[0].build(problem_of(CASE))


def test_cudnn_is_dense_attention_where_it_runs(monkeypatch):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from sift_index.bench import dense_calls as module

    problem = problem_of(CASE)
    with pytest.raises(RuntimeError):  # not on a CPU
        PEERS[1].build(problem)()
    monkeypatch.setattr(module, "sdpa_kernel", lambda backend: sdpa_kernel(SDPBackend.MATH))
    torch.testing.assert_close(PEERS[1].build(problem)(), dense(problem)(), atol=0.02, rtol=0.02)


def test_flex_attention_is_for_gpus():
    with pytest.raises(UsageError, match="expected CUDA tensors, found cpu"):
        flex_attention_run(problem_of(CASE))
