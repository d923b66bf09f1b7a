"""Tiny problems on the CPU, contenders that run there, and a clock that ticks as it is told."""

from dataclasses import replace

import torch

from sift_index.bench.cases import Case, CaseOptions
from sift_index.bench.clock import Clock
from sift_index.bench.contenders import Attention, Contender
from sift_index.bench.inputs import Problem, random_inputs
from sift_index.bench.plans import case_layout, random_plan
from sift_index.kernels.api import dense_attention, device_plan

CPU = torch.device("cpu")
TINY = CaseOptions(
    tokens=(520,),
    densities=(1.0, 0.3),
    documents=(130,),
    head_dims=(64,),
    aligned=False,
    heads=4,
    kv_heads=2,
)


def problem_of(case: Case, options: CaseOptions = TINY) -> Problem:
    plan = random_plan(case, case_layout(case, options), options.seed)
    return Problem(case, random_inputs(case, options, CPU), device_plan(plan, CPU))


def dense(problem: Problem) -> Attention:
    q, k, v = problem.inputs.by_head()
    return lambda: dense_attention(q, k, v, q.shape[2] ** -0.5)


# Dense attention that a CPU can run under the name of the baseline.
FA3 = Contender("fa3", dense, dense=True)


def clock(gpu: float = 2.0, seconds: float = 1.0) -> Clock:
    """Every call takes `gpu` ms on the device and twice as long in all; `now` moves by seconds."""
    time = iter(seconds * count for count in range(10_000))

    def ticking(factor: float):
        def timer(run, head_start_ms: float = 0.0) -> float:
            run()
            return gpu * factor

        return timer

    return Clock(ticking(1), ticking(2), lambda: next(time))


def returning(out: torch.Tensor, name: str = "wrong") -> Contender:
    """Return a path of ours whose output is always `out`."""
    return Contender(name, lambda problem: lambda: out, ours=True)


def raising(error: Exception, name: str = "broken") -> Contender:
    """Return a peer that cannot be built."""

    def build(problem: Problem) -> Attention:
        raise error

    return replace(FA3, name=name, build=build)
