"""One case: everyone who can run it is warmed up, judged, and then timed in turns."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from sift_index.bench.accuracy import MAX_ERROR, Truth, relative_error, truth_of
from sift_index.bench.cases import Case
from sift_index.bench.clock import Clock, alternating
from sift_index.bench.contenders import BASELINE, COMPACTION, Attention, Contender
from sift_index.bench.inputs import Problem
from sift_index.bench.paths import compaction
from sift_index.bench.work import causal_tiles, issued_tiles, tflops
from sift_index.errors import SiftError
from sift_index.kernels.api import plan_density


@dataclass(frozen=True)
class Effort:
    """How often everything runs: unmeasured first, then measured."""

    warmup: int = 2
    repeats: int = 5


@dataclass(frozen=True)
class Timing:
    """One contender's numbers. error: relative, None where it was not checked."""

    contender: Contender
    ms: float
    tflops: float
    error: float | None = None


@dataclass(frozen=True)
class CaseResult:
    """All numbers of a case. ideal: causal over visited score cells, a bound on the speed-up.

    absent: who could not run, and why. wrong: who ran, but to an output that nobody should use;
    neither is timed.
    """

    case: Case
    ideal: float
    timings: tuple[Timing, ...]
    compaction_ms: float | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    wrong: Mapping[str, str] = field(default_factory=dict)

    @property
    def baseline(self) -> Timing | None:
        """Dense FlashAttention-3 in this case, where it ran."""
        return next((t for t in self.timings if t.contender.name == BASELINE), None)


def measure_case(
    problem: Problem, contenders: Iterable[Contender], clock: Clock, effort: Effort, check: bool
) -> CaseResult:
    """Time a case. `check`: compare outputs with the float32 reference too."""
    chosen = [c for c in contenders if problem.case.aligned or not c.aligned]
    stage = _Stage(problem, effort, truth_of(problem) if check else None)
    for contender in (*chosen, Contender(COMPACTION, compaction)):
        stage.try_out(contender)
    stage.truth = None
    found = alternating(stage.ready, clock.gpu, effort.repeats)
    compaction_ms = found.pop(COMPACTION, None)
    work = _Work(problem)
    timings = [
        Timing(c, found[c.name], work.rate(c, found[c.name]), stage.errors.get(c.name))
        for c in chosen
        if c.name in found
    ]
    total = plan_density(problem.plan.source).total
    return CaseResult(
        problem.case,
        total.causal / total.visited,
        tuple(timings),
        compaction_ms,
        stage.absent,
        stage.wrong,
    )


class _Stage:
    """Who is ready to be timed, after a first look at their outputs."""

    def __init__(self, problem: Problem, effort: Effort, truth: Truth | None) -> None:
        self._problem, self._effort = problem, effort
        self.truth = truth
        self.ready: dict[str, Attention] = {}
        self.errors: dict[str, float] = {}
        self.absent: dict[str, str] = {}
        self.wrong: dict[str, str] = {}

    def try_out(self, contender: Contender) -> None:
        """Build and warm up a contender; whatever it raises is why it is absent."""
        try:
            run = contender.build(self._problem)
            for _ in range(self._effort.warmup):
                run()
            fault = self._fault(contender, run())
        except Exception as problem:
            self.absent[contender.name] = reason_of(problem)
            return
        if fault is None:
            self.ready[contender.name] = run
        else:
            self.wrong[contender.name] = fault

    def _fault(self, contender: Contender, out: torch.Tensor) -> str | None:
        """Return what is wrong with an output, and note its error where there is a truth."""
        if contender.name == COMPACTION:  # lists, which hold anything behind their ends
            return None
        if not bool(out.isfinite().all()):
            return "an output is not finite"
        if self.truth is None:
            return None
        truth = self.truth.dense if contender.dense else self.truth.sparse
        error = self.errors[contender.name] = relative_error(out, truth)
        return None if error <= MAX_ERROR else f"relative error {error:.3g}, above {MAX_ERROR}"


class _Work:
    """Issued tiles of a problem, by plan and dense."""

    def __init__(self, problem: Problem) -> None:
        case, heads = problem.case, problem.plan.layout.heads
        self._dim = case.head_dim
        self._sparse = issued_tiles(problem.plan)
        self._dense = causal_tiles(case.tokens, heads)

    def rate(self, contender: Contender, ms: float) -> float:
        return tflops(self._dense if contender.dense else self._sparse, self._dim, ms)


def reason_of(problem: Exception) -> str:
    """Return one line; our own errors need no type in front."""
    line = next(iter(str(problem).strip().splitlines()), "")
    if isinstance(problem, SiftError):
        return line
    return f"{type(problem).__name__}: {line}".removesuffix(": ")
