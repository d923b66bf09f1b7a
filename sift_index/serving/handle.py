"""What an engine keeps for a request: its plan, and the plan's masks on the devices that use them.

A handle never changes for its users. As long as it lives it holds memory of those devices, 4 bytes
for each page of the prompt, layer and mask head besides the bits: an engine that decodes with its
own kernel drops it when the prompt is prefilled.
"""

from collections.abc import Sequence
from threading import Lock

import torch

from sift_index.errors import PlanError
from sift_index.kernels.api import DevicePlan, MaskLayout, SparsePlan
from sift_index.runtime.plan import PromptPlan
from sift_index.serving.counters import ServingCounters, ServingSnapshot
from sift_index.serving.decoded import DecodedPlans
from sift_index.serving.visits import Visits


class RequestHandle:
    """A request's plan on one rank; safe to share between threads and streams.

    plan: the whole prompt's. sparse: the same for this rank's heads.
    """

    def __init__(self, plan: PromptPlan, sparse: SparsePlan, counters: ServingCounters) -> None:
        self.plan = plan
        self.sparse = sparse
        self._counters = counters
        self._decoded = DecodedPlans(sparse)
        self._lock = Lock()
        self._visits: dict[torch.device, Visits] = {}

    @property
    def ids(self) -> tuple[int, ...]:
        """The prompt's token ids."""
        return self.plan.ids

    @property
    def length(self) -> int:
        """Prompt length in tokens; rows at or behind it are dense."""
        return self.plan.length

    @property
    def layout(self) -> MaskLayout:
        """How this rank's masks are laid out."""
        return self.sparse.layout

    def check(self, ids: Sequence[int] | torch.Tensor, start: int) -> None:
        """Raise PlanError unless ids from position `start` on are the plan's.

        ids: a sequence, array or tensor. Those behind the prompt's end were generated and may be
        any.
        """
        if start < 0:
            raise PlanError(f"expected a position from 0, found {start}; pass that of the first id")
        difference = self.plan.first_difference(torch.as_tensor(ids, dtype=torch.int64), start)
        if difference is not None:
            at, wanted, found = difference
            raise PlanError(
                f"expected the plan's tokens, found token {found} at position {at} where the "
                f"plan has {wanted}; make a handle for this prompt"
            )

    def prepare(self, device: torch.device | str) -> None:
        """Begin to upload and decode for `device`, so that the first step finds it done."""
        device = torch.device(device)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self.visits(device)

    def on(self, device: torch.device) -> DevicePlan:
        """Return the decoded plan for `device` and its current stream, made at the first call."""
        self.visits(device)
        return self._decoded.on(device)

    def visits(self, device: torch.device) -> Visits:
        """Return what ranges of rows visit, as counted on `device` behind the decoding."""
        with self._lock:
            found = self._visits.get(device)
            if found is None:
                plan = self._decoded.on(device)
                found = self._visits[device] = Visits(plan)
                self._counters.add(ServingSnapshot(bytes_uploaded=_uploaded(plan)))
            return found


def _uploaded(plan: DevicePlan) -> int:
    """Return the bytes brought to the device: packed bits and the prompt's int32 tables."""
    page_columns, slots = 6 * plan.page_start.numel(), plan.counts.shape[-1]
    return plan.bits.nbytes + 4 * (page_columns + slots + plan.row_tiles.size)
