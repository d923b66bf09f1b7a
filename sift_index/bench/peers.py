"""The peers, each with its own way of being called; all read the same tensors as our paths."""

from importlib import import_module

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from sift_index.bench.contenders import BASELINE, Attention, Contender
from sift_index.bench.flex import flex_attention_run
from sift_index.bench.inputs import Problem


def _fa3(problem: Problem) -> Attention:
    interface = import_module("fa3_fwd_interface")
    q, k, v = (x[None] for x in (problem.inputs.q, problem.inputs.k, problem.inputs.v))

    def run() -> torch.Tensor:
        found = interface.flash_attn_func(q, k, v, causal=True)
        # Some versions return the log-sum-exp too.
        out: torch.Tensor = found[0] if isinstance(found, tuple) else found
        return out[0].transpose(0, 1)

    return run


def _cudnn(problem: Problem) -> Attention:
    q, k, v = (x[None] for x in problem.inputs.by_head())

    def run() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0]

    return run


PEERS = (
    Contender(BASELINE, _fa3, dense=True),
    Contender("cudnn", _cudnn, dense=True, once=True),
    Contender("flex", flex_attention_run, aligned=True),
)
