"""The public names of the kernels; callers import from here, never from one implementation.

    decoded = device_plan(plan, "cuda")                      # one prompt, once for all layers
    out = attend(q, k, v, decoded, layer, row_start)         # q [heads, R, D], k [kv_heads, N, D]

    batch = plan_batch(plans, row_starts, row_counts)        # several, once per forward pass
    out = attend_batch(q, k, v, batch, layer)                # their rows and keys packed

There is no `__init__.py` in this folder on purpose: a top-level package called `kernels` belongs
to another project that transformers looks for.
"""

from sift_index.kernels.batch_attention import attend_batch
from sift_index.kernels.dense import causal_attention, dense_attention
from sift_index.kernels.dense_rows import dense_rows
from sift_index.kernels.density import Cells, Density, layer_densities, plan_density
from sift_index.kernels.device_plan import Chunk, DevicePlan, device_plan
from sift_index.kernels.dispatch import attend
from sift_index.kernels.packed import Packed, Sections
from sift_index.kernels.packed_attention import PackedAttention
from sift_index.kernels.packed_statistics import PackedStatistics
from sift_index.kernels.plan import TILE, MaskLayout, SpanMask, SparsePlan
from sift_index.kernels.plan_batch import PlanBatch, PromptPart, plan_batch
from sift_index.kernels.reference import sparse_attention, sparse_log_sum_exp
from sift_index.kernels.rope import turn
from sift_index.kernels.statistics import (
    local_scores,
    nested_levels,
    paper_statistics,
    probe_scores,
)

__all__ = [
    "TILE",
    "Cells",
    "Chunk",
    "Density",
    "DevicePlan",
    "MaskLayout",
    "Packed",
    "PackedAttention",
    "PackedStatistics",
    "PlanBatch",
    "PromptPart",
    "Sections",
    "SpanMask",
    "SparsePlan",
    "attend",
    "attend_batch",
    "causal_attention",
    "dense_attention",
    "dense_rows",
    "device_plan",
    "layer_densities",
    "local_scores",
    "nested_levels",
    "paper_statistics",
    "plan_batch",
    "plan_density",
    "probe_scores",
    "sparse_attention",
    "sparse_log_sum_exp",
    "turn",
]
