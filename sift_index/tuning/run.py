"""Tuning a probe policy: the thresholds, and on request the head weights, for a model and data."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import torch

from sift_index.errors import ModelError, UsageError
from sift_index.evaluation.methods.registry import Setting
from sift_index.models.loading import LoadedModel, model_label
from sift_index.selection.extractor import Extractor
from sift_index.selection.policy import Policy, ProbePolicy
from sift_index.selection.quality import Quality
from sift_index.selection.sensitivity import head_weights
from sift_index.tuning.measure import Bench, Progress, Prompt, Reference, dense_reference
from sift_index.tuning.search import Search, Target, TunePoint, rounded

WEIGHED_PROMPTS = 4


@dataclass(frozen=True)
class TuneResult:
    """What tuning found.

    points: every point of the CA search, in the order measured; local: those of the LA search, with
    every CA page on. best: the sparsest point that meets the target, None when none does; closest:
    the best, or the one that misses the target by least. policy and quality are those of `closest`.
    """

    points: tuple[TunePoint, ...]
    local: tuple[TunePoint, ...]
    best: TunePoint | None
    closest: TunePoint
    policy: ProbePolicy
    quality: Quality


def tunable(policy: Policy) -> ProbePolicy:
    """Return the policy with one threshold each; UsageError when it is no probe policy."""
    if not isinstance(policy, ProbePolicy):
        raise UsageError(
            f"expected a policy of rule 'probe' to tune, found one of rule {policy.rule!r}; its "
            "thresholds are fixed"
        )
    ca, la = policy.ca_thresholds[:1], policy.la_thresholds[:1]
    return replace(policy, ca_thresholds=ca, la_thresholds=la)


def tune(
    setting: Setting,
    policy: ProbePolicy,
    prompts: Sequence[Prompt],
    target: Target,
    data: str,
    weigh_heads: bool = True,
    progress: Progress = lambda stage, done, total: None,
) -> TuneResult:
    """Find the sparsest masks that meet the target on the prompts; `data` is what to call those.

    LA comes first, where documents are long enough to have it, with all of CA on. `progress` is
    told the stage, and how much of it is done. Raises ModelError when memory runs out.
    """
    loaded = setting.loaded
    if weigh_heads:
        policy = replace(policy, head_weights=())
    Extractor(loaded, policy, setting.prefix)  # hours must not end in a policy that cannot be used
    references = []
    for number, prompt in enumerate(prompts, 1):
        references.append(dense_reference(loaded, prompt))
        progress("dense answers", number, len(prompts))
    if weigh_heads:
        policy = _weighed(loaded, policy, references[:WEIGHED_PROMPTS], progress)
    bench = Bench(loaded, policy, setting.prefix, references, progress)
    search = Search(bench.measure, target)
    la = search.local_threshold() if bench.has_local else policy.la_thresholds[0]
    search.cross_threshold(bench.candidates, la)
    return _result(search, policy, model_label(loaded.name), data, len(prompts))


def _weighed(
    loaded: LoadedModel, policy: ProbePolicy, references: Sequence[Reference], progress: Progress
) -> ProbePolicy:
    progress("head weights", 0, 1)
    prompts, answers = [r.prompt for r in references], [r.answer for r in references]
    try:
        weights = head_weights(loaded, prompts, answers)
    except torch.OutOfMemoryError as problem:
        raise ModelError(
            "a backward pass of one prompt does not fit into this GPU's memory; use "
            "--no-head-weights, or shorter prompts with --max-tokens"
        ) from problem
    progress("head weights", 1, 1)
    # Few digits before anything is measured, so that the file's numbers are the measured ones.
    return replace(policy, head_weights=tuple(tuple(map(rounded, row)) for row in weights))


def _result(search: Search, policy: ProbePolicy, model: str, data: str, prompts: int) -> TuneResult:
    point = search.closest
    ca, la = point.ca_threshold, point.la_threshold
    return TuneResult(
        tuple(search.points),
        tuple(search.local),
        search.best,
        point,
        replace(policy, ca_thresholds=(ca,), la_thresholds=(la,)),
        {"model": model, "data": data, "prompts": prompts, **_numbers(point), "date": _today()},
    )


def _numbers(point: TunePoint) -> dict[str, Any]:
    values: dict[str, float] = {}
    for name, found in (("kl", point.kl), ("top1", point.top1)):
        values |= {name: found.mean, f"{name}_low": found.low, f"{name}_high": found.high}
    values |= {"ca_density": point.ca_density, "density": point.density}
    return {name: rounded(value, 4) for name, value in values.items()}


def _today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")
