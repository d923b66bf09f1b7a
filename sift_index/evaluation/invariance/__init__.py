"""The paper's two claims about attention, measured on a model layer by layer.

Claim 1: a document's own high scores stay where they are when other documents stand before it.
Claim 2: the keys that later documents attend to can be predicted from the document alone.
"""

from sift_index.evaluation.invariance.measures import (
    CrossRecall,
    Invariance,
    InvarianceReport,
    LocalRecall,
)
from sift_index.evaluation.invariance.plot import plot_invariance
from sift_index.evaluation.invariance.report import (
    cross_table,
    invariance_rows,
    invariance_values,
    local_table,
)
from sift_index.evaluation.invariance.run import (
    Predictor,
    measure_invariance,
    measure_predictors,
)
from sift_index.evaluation.invariance.sums import Limits

__all__ = [
    "CrossRecall",
    "Invariance",
    "InvarianceReport",
    "Limits",
    "LocalRecall",
    "Predictor",
    "cross_table",
    "invariance_rows",
    "invariance_values",
    "local_table",
    "measure_invariance",
    "measure_predictors",
    "plot_invariance",
]
