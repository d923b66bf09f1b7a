"""Compare two methods on the questions that two files of scores share, prompt by prompt.

python -m benchmarks.compare CASE SCORES METHOD SCORES METHOD RESULTS

The first method is compared with the second. The files may be of different settings (another
prefix, say): questions are paired by data set and id. Where the first file holds several levels of
the method, its KL is also taken at the second method's density.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.tables import kl_at
from sift_index.evaluation.metrics import CONFIDENCE, RESAMPLES, Interval, bootstrap
from sift_index.evaluation.results import interval_values, merge_results, result_rows

UNITS = {"kl": "nats", "top1": "share", "density": "share"}
Scores = list[dict[str, dict[str, float]]]  # of each prompt, by method and metric
Numbers = np.ndarray[tuple[int], np.dtype[np.float64]]
Curve = tuple[Numbers, Numbers]  # density and KL of each prompt
Draw = np.ndarray[tuple[int], np.dtype[np.int64]]


def paired(first: Path, second: Path) -> tuple[Scores, Scores]:
    """Return the scores of the questions that both files of `eval --scores` hold, in one order."""
    a, b = _read(first), _read(second)
    both = sorted(a.keys() & b.keys())
    if not both:
        raise SystemExit(f"{first} and {second} share no question")
    return [a[key] for key in both], [b[key] for key in both]


def comparison(
    case: str, first: Scores, method: str, second: Scores, other: str
) -> Iterator[tuple[str, str, float, str]]:
    """Yield values of result rows: both means, their paired change and, of KL, their ratio."""
    for name, unit in UNITS.items():
        found, reference = numbers(first, method, name), numbers(second, other, name)
        yield case, name, float(found.mean()), unit
        yield case, f"{name}_other", float(reference.mean()), unit
        change = bootstrap((found - reference).tolist())
        yield from interval_values(case, f"{name}_change", change, unit)
    ratio = _kl_ratio([_curve(first, method)], _curve(second, other))
    yield from interval_values(case, "kl_ratio", ratio, "x")
    levels = [name for name in first[0] if name.split("@")[0] == method.split("@")[0]]
    if len(levels) > 1:
        ratio = _kl_ratio([_curve(first, level) for level in levels], _curve(second, other))
        yield from interval_values(case, "kl_ratio_at_density", ratio, "x")


def _kl_ratio(levels: list[Curve], other: Curve) -> Interval:
    """Return the ratio of mean KLs, between several levels at the other's mean density."""

    def ratio(at: Draw) -> float:
        points = [(float(d[at].mean()), float(k[at].mean())) for d, k in levels]
        wanted, reference = (float(numbers[at].mean()) for numbers in other)
        return (kl_at(wanted, points) if len(points) > 1 else points[0][1]) / reference

    return resampled(len(other[0]), ratio)


def _read(path: Path) -> dict[tuple[str, str], dict[str, dict[str, float]]]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {(line["dataset"], line["id"]): line["scores"] for line in lines}


def _curve(scores: Scores, method: str) -> Curve:
    return numbers(scores, method, "density"), numbers(scores, method, "kl")


def numbers(scores: Scores, method: str, metric: str) -> Numbers:
    return np.array([prompt[method][metric] for prompt in scores])


def resampled(count: int, statistic: Callable[[Draw], float]) -> Interval:
    """Return a statistic of all prompts with its interval, drawn as `bootstrap` draws."""
    draws = np.random.default_rng(0).integers(0, count, (RESAMPLES, count))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile([statistic(draw) for draw in draws], (tail, 1 - tail))
    return Interval(float(statistic(np.arange(count))), float(low), float(high))


def main() -> None:
    """Compare, and merge what was found into the results file."""
    case, first, method, second, other, results = sys.argv[1:]
    a, b = paired(Path(first), Path(second))
    values = [(case, "prompts", float(len(a)), "prompts")]
    values += comparison(case, a, method, b, other)
    rows = result_rows(values, torch.device("cpu"), baseline=f"{other}, same questions")
    merge_results(Path(results), Path(results).stem, rows)


if __name__ == "__main__":
    main()
