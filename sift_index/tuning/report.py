"""A tuning run as a table, as JSON values, as comments of a policy file, and as an error."""

from dataclasses import asdict
from typing import Any

from sift_index import __version__
from sift_index.errors import TargetNotMetError
from sift_index.evaluation.metrics import Interval
from sift_index.tuning.run import TuneResult
from sift_index.tuning.search import Target, TunePoint


def cross_table(found: TuneResult) -> tuple[str, list[str], list[list[str]]]:
    """Return title, column names and rows of text of the CA search, densest first."""
    points = sorted(found.points, key=lambda point: point.ca_threshold)
    prompts, data = found.quality["prompts"], found.quality["data"]
    title = f"{prompts} prompts of {data}, LA threshold {points[0].la_threshold:g}"
    return title, _columns("CA"), [_row(point, point.ca_threshold) for point in points]


def local_table(found: TuneResult) -> tuple[str, list[str], list[list[str]]]:
    """Return title, column names and rows of text of the LA search, densest first."""
    points = sorted(found.local, key=lambda point: point.la_threshold)
    title = "LA alone, every CA page on: at most a tenth of the target"
    return title, _columns("LA"), [_row(point, point.la_threshold) for point in points]


def tune_values(found: TuneResult, target: Target) -> dict[str, Any]:
    """Return a result as JSON values; `local_points` are those with every CA page on."""
    return {
        "target": asdict(target),
        "met": found.best is not None,
        "best": None if found.best is None else asdict(found.best),
        "closest": asdict(found.closest),
        "points": [asdict(point) for point in found.points],
        "local_points": [asdict(point) for point in found.local],
        "quality": dict(found.quality),
    }


def not_met(found: TuneResult, target: Target) -> TargetNotMetError:
    """Return the error that names the closest point; its details are `tune_values`."""
    point = found.closest
    return TargetNotMetError(
        f"expected masks with {target} on {found.quality['prompts']} prompts, found none; the "
        f"closest have KL {_interval(point.kl, 4)} and top-1 {_interval(point.top1, 3)} at CA "
        f"density {point.ca_density:.3f} (CA threshold {point.ca_threshold:g}). Nothing was "
        "written; allow more, or start from a policy with smaller pages or other windows",
        tune_values(found, target),
    )


def policy_notes(found: TuneResult, target: Target, base: str) -> list[str]:
    """Return what a policy file says about how it was made from the policy called `base`."""
    quality = found.quality
    weights = "with head weights" if found.policy.head_weights else "without head weights"
    return [
        f"Made by sift-index tune {__version__} from policy {base}, {weights}.",
        f"model: {quality['model']}",
        f"data: {quality['data']}, {quality['prompts']} prompts",
        f"target: {target}; of all masks measured, these are the sparsest to meet it.",
        "The quality below was measured on the prompts that the thresholds were chosen on.",
    ]


def _columns(kind: str) -> list[str]:
    return [f"{kind} threshold", "CA", "density", "KL, nats", "top-1", "met"]


def _row(point: TunePoint, threshold: float) -> list[str]:
    shares = [f"{share:.3f}" for share in (point.ca_density, point.density)]
    close = [_interval(point.kl, 4), _interval(point.top1, 3)]
    return [f"{threshold:g}", *shares, *close, "yes" if point.meets else "no"]


def _interval(found: Interval, digits: int) -> str:
    mean, low, high = (f"{value:.{digits}f}" for value in (found.mean, found.low, found.high))
    return f"{mean} [{low}, {high}]"
