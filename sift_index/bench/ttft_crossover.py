"""From which density on dense attention is faster, by prompt length: a small table for a GPU.

Measured with the same prefills as everything else: dense and sparse at several densities, and
where the ratio of their times crosses 1 in between.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sift_index.bench.ttft_cases import CUDNN, FA3, SDPA, SIFT, Row, TTFTCase
from sift_index.bench.ttft_measure import Instruments, TTFTResult
from sift_index.bench.ttft_report import progress_line
from sift_index.bench.ttft_session import CaseRunner, Reasons, TTFTRun, pieces
from sift_index.errors import UsageError
from sift_index.outputs import write_whole
from sift_index.runtime.crossover import CrossoverRow

TOKENS = (1024, 2048, 4096, 8192, 16384)
DENSITIES = (0.02, 0.1, 0.2, 0.35, 0.5, 0.7)
# A short prompt has shorter documents, so that it still has some to attend across.
DOCUMENTS_OF_A_PROMPT = 8
SHORTEST, LONGEST = 128, 1024


@dataclass(frozen=True)
class Point:
    """One measurement: total density of a prompt, and dense time over sparse time."""

    density: float
    speedup: float


def crossover_case(tokens: int) -> TTFTCase:
    """Return the case that stands for prompts of this length."""
    size = tokens // DOCUMENTS_OF_A_PROMPT
    return TTFTCase(tokens, min(max(size, SHORTEST), LONGEST))


def crossing(points: Sequence[Point]) -> float:
    """Return the largest density at which sparse is faster, between the points around it.

    0.0 where it never is; the largest measured one where it always is, since nobody knows more.
    """
    ordered = sorted(points, key=lambda point: point.density, reverse=True)
    upper: Point | None = None
    for point in ordered:
        if point.speedup > 1:
            return point.density if upper is None else _between(point, upper)
        upper = point
    return 0.0


def _between(faster: Point, slower: Point) -> float:
    """Return where the line through two points crosses 1."""
    share = (faster.speedup - 1) / (faster.speedup - slower.speedup)
    return faster.density + share * (slower.density - faster.density)


def points_of(result: TTFTResult) -> list[Point]:
    """Return the points of a case. Raises UsageError where nothing dense or nothing sparse ran."""
    dense = next(iter(result.dense.values()), None)
    sparse = [timing for timing in result.timings if timing.row.kind == SIFT]
    if dense is None or not sparse:
        why = "; ".join(f"{name}: {reason}" for name, reason in result.absent.items())
        raise UsageError(
            f"crossover at {result.case.tokens:,} tokens: expected a dense and a sparse row, "
            f"found none of one ({why}); see which rows run here with `sift-index bench ttft`"
        )
    return [Point(t.numbers["density"], dense.ms / t.ms) for t in sparse]


def measure_crossover(
    run: TTFTRun, model: Any, instruments: Instruments, say: Callable[[str], None]
) -> Iterator[CrossoverRow]:
    """Measure one length after the other, the shortest first; a budget ends it between two."""
    runner, reasons = CaseRunner(run, model, instruments), Reasons(say)
    # The first dense row that runs here is the one to beat.
    rows = [Row(kind) for kind in (FA3, CUDNN, SDPA) if kind in run.options.kinds]
    rows += [Row(SIFT, ca) for ca in run.options.densities]
    end = instruments.clock.now() + (float("inf") if run.budget is None else run.budget)
    with pieces(model, run.compile):
        for tokens in sorted(run.options.tokens):
            if instruments.clock.now() >= end:
                say(f"{tokens:,} tokens: left out: the budget of {run.budget:g} s is spent")
                continue
            result = runner.measure(crossover_case(tokens), rows)
            say(progress_line(result))
            reasons.of(result)
            yield CrossoverRow(tokens, round(crossing(points_of(result)), 3))


def write_crossover(path: Path, device: str, shape: str, rows: Sequence[CrossoverRow]) -> None:
    """Write the table of a GPU. Raises UsageError where it cannot be written."""
    values = {
        "device": device,
        "model_shape": shape,
        "rows": [{"tokens": row.tokens, "max_density": row.max_density} for row in rows],
    }
    note = "# Largest density at which sparse prefill is faster (sift-index bench ttft --crossover)"
    write_whole(path, f"{note}\n{yaml.safe_dump(values, sort_keys=False)}")
