"""A whole benchmark: cases in order, kept as they come, none begun behind the budget."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from sift_index.bench.accuracy import MOST_CHECKED_TOKENS
from sift_index.bench.cases import Case, CaseOptions
from sift_index.bench.clock import Clock
from sift_index.bench.contenders import Contender
from sift_index.bench.inputs import Inputs, Problem, random_inputs
from sift_index.bench.measure import CaseResult, Effort, measure_case
from sift_index.bench.plans import case_layout, random_plan
from sift_index.kernels.api import device_plan


@dataclass(frozen=True)
class RunOptions:
    """How to run cases. check: compare outputs of the shortest prompts with the reference.

    budget: seconds behind which no case begins; None for no end.
    """

    cases: CaseOptions
    effort: Effort = Effort()
    check: bool = True
    budget: float | None = None

    @property
    def too_long(self) -> bool:
        """Whether even the shortest prompts are too long for the reference."""
        return min(self.cases.tokens) > MOST_CHECKED_TOKENS

    def checks(self, case: Case) -> bool:
        """Whether a case's outputs are compared with the reference."""
        return self.check and not self.too_long and case.tokens == min(self.cases.tokens)


def run_cases(
    options: RunOptions,
    cases: Sequence[Case],
    contenders: Sequence[Contender],
    device: torch.device,
    clock: Clock,
    done: Callable[[CaseResult], None],
) -> list[Case]:
    """Measure cases and hand each result to `done` at once; return those left out."""
    run = _Run(options, contenders, device, clock, done)
    groups = [list(group) for _, group in groupby(cases, lambda case: case.shape)]
    return [case for group in groups for case in run.group(group)]


class _Run:
    """What the cases of one run share."""

    def __init__(
        self,
        options: RunOptions,
        contenders: Sequence[Contender],
        device: torch.device,
        clock: Clock,
        done: Callable[[CaseResult], None],
    ) -> None:
        self._options, self._contenders = options, contenders
        self._device, self._clock, self._done = device, clock, done
        self._end = clock.now() + (float("inf") if options.budget is None else options.budget)
        self._timed: set[tuple[str, str]] = set()

    def group(self, cases: Sequence[Case]) -> Sequence[Case]:
        """Measure the cases of one shape on the same inputs; return those left out.

        Inputs and outputs fill much of a GPU, so those of one shape exist at a time.
        """
        if self._spent():
            return cases
        inputs = random_inputs(cases[0], self._options.cases, self._device)
        for number, case in enumerate(cases):
            if self._spent():
                return cases[number:]
            self._measure(case, inputs)
        return ()

    def _spent(self) -> bool:
        return self._clock.now() >= self._end

    def _measure(self, case: Case, inputs: Inputs) -> None:
        options = self._options
        layout = case_layout(case, options.cases)
        plan = random_plan(case, layout, options.cases.seed)
        problem = Problem(case, inputs, device_plan(plan, self._device))
        wanted, check = self._wanted(case), options.checks(case)
        self._done(measure_case(problem, wanted, self._clock, options.effort, check))

    def _wanted(self, case: Case) -> list[Contender]:
        """Return who runs in a case: those timed once for each shape only in its first."""
        wanted = [
            c for c in self._contenders if not c.once or (c.name, case.shape) not in self._timed
        ]
        self._timed |= {(contender.name, case.shape) for contender in wanted}
        return wanted
