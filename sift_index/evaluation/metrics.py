"""Metrics of one prompt, and their means with bootstrap intervals over prompts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class PromptScore:
    """One prompt under one method.

    KL in nats, NLL in nats per token; top-1, F1, exact match, densities and recalls as shares.
    Recalls are shares of the dense model's attention mass that fall into visited places, over the
    rows of documents: None for methods without a plan. F1 and exact match are None when no answer
    was generated.
    """

    kl: float
    top1: float
    nll: float
    density: float
    la_density: float
    ca_density: float
    f1: float | None = None
    em: float | None = None
    la_recall: float | None = None
    ca_recall: float | None = None


@dataclass(frozen=True)
class Interval:
    """A mean over prompts with its bootstrap interval."""

    mean: float
    low: float
    high: float


def divergence(dense: torch.Tensor, sparse: torch.Tensor) -> tuple[float, float]:
    """Return mean KL(dense to sparse) in nats and the share of equal arg-max, logits [n, V]."""
    reference = dense.double().log_softmax(-1)
    other = sparse.double().log_softmax(-1)
    kl = (reference.exp() * (reference - other)).sum(-1).clamp_(min=0.0)
    same = (reference.argmax(-1) == other.argmax(-1)).double()
    return float(kl.mean()), float(same.mean())


def answer_nll(logits: torch.Tensor, answer: list[int]) -> float:
    """Return the mean negative log-likelihood of an answer's tokens in nats, logits [n, V]."""
    chosen = torch.tensor(answer, device=logits.device)
    return float(torch.nn.functional.cross_entropy(logits.double(), chosen))


def bootstrap(values: Sequence[float]) -> Interval:
    """Return the mean and its percentile interval, resampling prompts; seeded, so repeatable."""
    sample = np.asarray(values, dtype=np.float64)
    draws = np.random.default_rng(0).integers(0, len(sample), (RESAMPLES, len(sample)))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(sample[draws].mean(1), (tail, 1 - tail))
    return Interval(float(sample.mean()), float(low), float(high))
