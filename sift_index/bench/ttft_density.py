"""CA density by layer and head as in a real index, for a model of another shape and another mean.

Heads differ: a kernel that is fast at one density everywhere may wait for the densest head. So the
benchmark takes the table of a measured index, stretches it to the model's layers and heads, and
scales it to the mean that was asked for.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sift_index import configs
from sift_index.errors import UsageError

Shares: TypeAlias = NDArray[np.float64]
MEASURED = "density-smollm2-135m"
# Halvings of the interval in which the scale lies: to the last bit of a float32.
HALVINGS = 60


@dataclass(frozen=True, eq=False)
class MeasuredDensity:
    """What an index of the default policy looks like (`benchmarks.density_table` writes the file).

    ca: float64 [layers, heads], share of a document's keys that later documents attend to.
    ca_mean: CA density of prompts. la_long: LA density of documents of more than 1,024 tokens.
    """

    model: str
    ca_mean: float
    la_long: float
    ca: Shares = field(repr=False)


def measured_density(name: str = MEASURED) -> MeasuredDensity:
    """Return a packaged table."""
    values = configs.load_yaml(configs.resource("bench", f"{name}.yaml"))
    ca = np.array(values["ca"], np.float64)
    return MeasuredDensity(values["model"], values["ca_mean"], values["la_long"], ca)


def densities(table: Shares, layers: int, heads: int, mean: float, seed: int = 0) -> Shares:
    """Return float64 [layers, heads] of this mean, distributed as in the table [L, H].

    Heads come in random order within their layer. Raises UsageError for a mean out of reach.
    """
    scaled = scaled_to(stretched(table, layers, heads), mean)
    return np.random.default_rng(seed).permuted(scaled, axis=1)


def stretched(table: Shares, layers: int, heads: int) -> Shares:
    """Return [layers, heads] by interpolation: over relative depth, and between quantiles of heads.

    Heads of different models have no names in common, their quantiles do; they come in order.
    """
    ordered = np.sort(table, axis=1)
    at = np.linspace(0, ordered.shape[1] - 1, heads)
    wide = np.array([np.interp(at, np.arange(len(layer)), layer) for layer in ordered])
    depth = np.linspace(0, len(wide) - 1, layers)
    columns = [np.interp(depth, np.arange(len(wide)), column) for column in wide.T]
    return np.stack(columns, axis=1)


def scaled_to(shares: Shares, mean: float) -> Shares:
    """Return shares times a number, clipped at 1, so that their mean is `mean`.

    What is 0 stays 0, as the last layer under the default policy: it attends to no other document.
    Raises UsageError for a mean below 0, or above the part that is not 0.
    """
    most = float((shares > 0).mean())
    if not 0 < mean <= most:
        raise UsageError(
            f"expected a mean CA density above 0 and at most {most:.3f} (the other heads have "
            f"none in a real index), found {mean:g}; take another"
        )
    low, high = 0.0, 1 / float(shares[shares > 0].min())
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _clipped(shares, middle).mean() < mean else (low, middle)
    return _clipped(shares, high)


def _clipped(shares: Shares, factor: float) -> Shares:
    return np.minimum(shares * factor, 1.0)
