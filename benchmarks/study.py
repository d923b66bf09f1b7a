"""What studies of mask rules share: options, scores that survive a stop, and rows of results.

A study tries rules that no index can hold, on the prompts and metrics of `sift-index eval`. Its
methods are families, one method for each threshold ("FAMILY@THRESHOLD"). One family is the
reference: the other methods are compared with its curve, where they keep or lose as much as it.
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.compare import Scores, numbers, resampled
from benchmarks.tables import kl_at
from sift_index.errors import UsageError
from sift_index.evaluation.ledger import Ledger
from sift_index.evaluation.methods.registry import Setting
from sift_index.evaluation.methods.treatment import Method
from sift_index.evaluation.metrics import Interval
from sift_index.evaluation.questions import (
    Question,
    example_questions,
    load_question_files,
    select_questions,
)
from sift_index.evaluation.report import report_rows
from sift_index.evaluation.results import (
    data_label,
    interval_values,
    merge_results,
    read_results,
    result_rows,
)
from sift_index.evaluation.run import EvalOptions, EvalReport, evaluate, prompt_tokens
from sift_index.formats.canonical import digest
from sift_index.models.digests import weights_digest
from sift_index.models.loading import load_model, model_label
from sift_index.models.quiet import quiet_transformers
from sift_index.selection.policy import ProbePolicy, policy_values

RESULTS = Path(__file__).parent / "results" / "studies.json"


@dataclass(frozen=True)
class Meeting:
    """How a method is compared with the reference's curve: at its own `x`, `y` over the curve's.

    metric: the name of that ratio. scale: what makes the logarithm of y a line over x.
    """

    metric: str
    x: str
    y: str
    scale: Callable[[float], float] = float


AT_EQUAL_CA = Meeting("kl_ratio", "ca_density", "kl")
AT_EQUAL_KL = Meeting("la_density_ratio", "kl", "la_density", math.log)


@dataclass(frozen=True)
class Study:
    """Methods by FAMILY@THRESHOLD, which family is the reference, and how others meet it."""

    name: str
    methods: Mapping[str, Method]
    reference: str
    meeting: Meeting


Make = Callable[[Setting, ProbePolicy], Study]


def main(make: Make, about: str | None) -> None:
    """Run a study of the default policy as the command line says; merge its numbers."""
    chosen = _arguments(about)
    quiet_transformers()
    read_results(chosen.results)  # hours must not end in a place that cannot be written
    setting, policy = Setting(load_model(chosen.model, chosen.dtype, chosen.device)), ProbePolicy()
    asked, study = _asked(setting, chosen), _narrowed(make(setting, policy), chosen.methods)
    ledger = _ledger(chosen.scores, setting, study, policy)
    options = EvalOptions(generate=False, recall=False)
    report = evaluate(setting, asked, study.methods, options, _progress(len(asked)), ledger)
    device, model = setting.loaded.device, model_label(setting.loaded.name)
    case = f"{study.name}/{model}/{data_label(one.dataset for one in asked)}"
    rows = report_rows(report, f"{study.name}/{model}", device)
    rows = [row for row in rows if row.case.startswith(f"{case}/")]  # all data sets together
    baseline = f"{study.reference}, same prompts"
    rows += result_rows(ratios(case, study, scores_of(report)), device, baseline)
    merge_results(chosen.results, chosen.results.stem, rows)


def ratios(case: str, study: Study, scores: Scores) -> Iterator[tuple[str, str, float, str]]:
    """Yield values of result rows: each method beside the reference, where its curve reaches."""
    curve = [name for name in study.methods if _family(name) == study.reference]
    for name in study.methods:
        found = None if name in curve else ratio(scores, name, curve, study.meeting)
        if found is not None:
            yield from interval_values(f"{case}/{name}", study.meeting.metric, found, "x")


def ratio(scores: Scores, method: str, curve: Sequence[str], at: Meeting) -> Interval | None:
    """Return a method's y over that of a curve of methods at its x; None beyond the curve's ends.

    Means over prompts are compared, in every resample, log-linear between the curve's methods.
    """
    x, y = (numbers(scores, method, name) for name in (at.x, at.y))
    points = [(numbers(scores, one, at.x), numbers(scores, one, at.y)) for one in curve]
    ends = [float(point.mean()) for point, _ in points]
    if len(ends) < 2 or not min(ends) <= float(x.mean()) <= max(ends):
        return None
    return resampled(
        len(x),
        lambda draw: (
            float(y[draw].mean())
            / kl_at(
                at.scale(float(x[draw].mean())),
                [(at.scale(float(a[draw].mean())), float(b[draw].mean())) for a, b in points],
            )
        ),
    )


def scores_of(report: EvalReport) -> Scores:
    """Return a report's metrics of each prompt, by method."""
    return [{name: asdict(score) for name, score in one.scores.items()} for one in report.asked]


def _narrowed(study: Study, wanted: str | None) -> Study:
    """Return a study of some of its methods, all where none are named."""
    names = [name.strip() for name in wanted.split(",")] if wanted else [*study.methods]
    if unknown := [name for name in names if name not in study.methods]:
        known = ", ".join(study.methods)
        raise UsageError(f"expected methods of {known}; found {', '.join(unknown)}")
    return replace(study, methods={name: study.methods[name] for name in names})


def _family(method: str) -> str:
    return method.partition("@")[0]


def _asked(setting: Setting, chosen: argparse.Namespace) -> list[Question]:
    """Return the first prompts of the wanted length of each file."""
    found = load_question_files(chosen.questions) if chosen.questions else example_questions()
    kept, _ = select_questions(
        found, lambda one: prompt_tokens(setting.writer, one), chosen.min_tokens, chosen.max_tokens
    )
    names = dict.fromkeys(one.dataset for one in kept)
    return [q for n in names for q in [q for q in kept if q.dataset == n][: chosen.prompts]]


def _ledger(path: Path | None, setting: Setting, study: Study, policy: ProbePolicy) -> Ledger:
    """Return scores of an earlier run of the same model, policy and methods, to go on with."""
    digests = {name: digest([study.name, name, policy_values(policy)]) for name in study.methods}
    if path is None:
        return Ledger(policies=digests)
    model = setting.loaded.model
    name = f"{study.name} of {setting.loaded.name} {weights_digest(model)[:8]} {model.dtype}"
    return Ledger.open(path, name, digests)


def _arguments(about: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    parser.add_argument("--questions", type=Path, action="append", help="default: the examples")
    parser.add_argument("--min-tokens", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=8000)
    parser.add_argument("--prompts", type=int, help="of each file; default: all")
    parser.add_argument("--methods", help="only these of the study, comma-separated")
    parser.add_argument("--scores", type=Path, help="kept here, so that a run can go on")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args()


def _progress(total: int) -> Callable[[int], None]:
    return lambda done: print(f"prompt {done}/{total}", file=sys.stderr, flush=True)
