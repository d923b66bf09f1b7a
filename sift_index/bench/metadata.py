"""What a prompt's plan costs before its first layer: host tables, upload and decode, all layers."""

from dataclasses import dataclass
from statistics import median

import torch

from sift_index.bench.cases import Case
from sift_index.bench.clock import Clock
from sift_index.bench.measure import Effort
from sift_index.bench.plans import random_plan
from sift_index.kernels.api import MaskLayout, device_plan

# 64K tokens in 64 documents, in the shape of Llama-3.1-8B.
CASE = Case(tokens=65536, head_dim=128, document=1024, ca=0.1)
LAYOUT = MaskLayout(layers=32, heads=32, mask_heads=32, page_size=32)
# Longer than the host's part, so that none of it lies between the GPU's events.
HEAD_START_MS = 30.0


@dataclass(frozen=True)
class MetadataTimes:
    """Medians. wall_ms: host and GPU, until the device is done; gpu_ms: the GPU's part."""

    documents: int
    wall_ms: float
    gpu_ms: float


def metadata_times(
    device: torch.device,
    clock: Clock,
    effort: Effort,
    case: Case = CASE,
    layout: MaskLayout = LAYOUT,
) -> MetadataTimes:
    """Time `device_plan` on a random plan, and the table of its tiles for one prefill."""
    plan = random_plan(case, layout)

    def decode() -> object:
        return device_plan(plan, device).chunk(0, plan.length)

    for _ in range(effort.warmup):
        decode()
    wall = [clock.wall(decode) for _ in range(effort.repeats)]
    gpu = [clock.gpu(decode, head_start_ms=HEAD_START_MS) for _ in range(effort.repeats)]
    return MetadataTimes(len(plan.spans), median(wall), median(gpu))
