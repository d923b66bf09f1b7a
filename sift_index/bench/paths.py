"""Our own paths, forced one by one through the variable that `kernels.dispatch` reads."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from sift_index.bench.contenders import Attention, Contender
from sift_index.bench.inputs import Problem
from sift_index.errors import UsageError
from sift_index.kernels.api import attend
from sift_index.kernels.dispatch import PATHS, REFERENCE, VARIABLE
from sift_index.kernels.lists import Pair, attend_through_lists
from sift_index.kernels.ops import compact


def chosen_paths(names: Sequence[str] | None, known: Sequence[str] = PATHS) -> list[Contender]:
    """Return our paths by name; by default all but the reference, which is far too slow to time.

    Raises UsageError for no name, or one that is not known.
    """
    if names is None:
        names = [name for name in known if name != REFERENCE]
    wrong = [repr(name) for name in names if name not in known] or ([] if names else ["none"])
    if wrong:
        choices = ", ".join(known)
        raise UsageError(f"--paths: expected some of {choices}, found {wrong[0]}; take from these")
    return [path(name) for name in dict.fromkeys(names)]


def path(name: str) -> Contender:
    """Return the path that SIFT_ATTENTION=`name` forces."""

    def build(problem: Problem) -> Attention:
        q, k, v = problem.inputs.by_head()

        def run() -> torch.Tensor:
            with forced(name):
                return attend(q, k, v, problem.plan, layer=0)

        return run

    return Contender(name, build, ours=True)


@contextmanager
def forced(name: str) -> Iterator[None]:
    """Make `kernels.dispatch` take one path, or refuse."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def compaction(problem: Problem) -> Attention:
    """Return the copying alone, as attention asks for it: the keys of every list."""
    q, k, v = problem.inputs.by_head()
    work = problem.plan.chunk(0, problem.case.tokens).work

    def without_attention(*tensors: torch.Tensor, **_: object) -> Pair:
        k_list, v_list = tensors[3:5]
        return k_list, v_list

    def run() -> torch.Tensor:
        arguments = (q, k, v, work, 0, None, False)
        return attend_through_lists(compact, without_attention, *arguments)[0]

    return run
