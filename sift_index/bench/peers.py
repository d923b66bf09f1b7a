"""The peers, each with its own way of being called; all read the same tensors as our paths."""

from functools import partial

from sift_index.bench import dense_calls
from sift_index.bench.contenders import BASELINE, Attention, Contender
from sift_index.bench.flex import flex_attention_run
from sift_index.bench.inputs import Problem


def _fa3(problem: Problem) -> Attention:
    return partial(dense_calls.fa3(), *problem.inputs.by_head(), None)


def _cudnn(problem: Problem) -> Attention:
    return partial(dense_calls.cudnn, *problem.inputs.by_head(), None)


PEERS = (
    Contender(BASELINE, _fa3, dense=True),
    Contender("cudnn", _cudnn, dense=True, once=True),
    Contender("flex", flex_attention_run, aligned=True),
)
