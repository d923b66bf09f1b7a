"""The CA key list of one layer: which earlier keys are visible to later spans, and the counts.

Outside the boundary window rule 3 does not depend on the row, so one list per head serves the
whole prompt and each span sees a prefix of it.
"""

from dataclasses import dataclass

import torch

from sift_index.kernels.bits import ca_keys
from sift_index.kernels.plan import SparsePlan


@dataclass(frozen=True)
class CaList:
    """Selected keys of one layer in position order.

    kept: bool [heads, length]. count_first, count: int64 [heads, spans], keys of the list that the
    rows of a span's first tile, and of its other tiles, attend to.
    """

    kept: torch.Tensor
    count_first: torch.Tensor
    count: torch.Tensor


def ca_list(plan: SparsePlan, layer: int) -> CaList:
    """Decode the CA bits of one layer into the key list and its two counts per span."""
    layout = plan.layout
    device = plan.spans[0].ca.device if plan.spans else torch.device("cpu")
    kept = torch.zeros(layout.heads, plan.length, dtype=torch.bool, device=device)
    for span in plan.spans:
        kept[:, span.start : span.stop] = ca_keys(span, layer, layout, plan.level)
    total = torch.nn.functional.pad(kept.cumsum(-1), (1, 0))
    starts = [span.start for span in plan.spans]
    windows = [plan.window_start(index) for index in range(len(starts))]
    return CaList(kept, total[:, windows], total[:, starts])


def glue_keys(plan: SparsePlan, device: torch.device) -> torch.Tensor:
    """Return bool [length]: keys of glue segments, visible to every later row."""
    glue = torch.ones(plan.length, dtype=torch.bool, device=device)
    for span in plan.spans:
        glue[span.start : span.stop] = False
    return glue
