"""What an engine keeps for a request: its plan, and the plan's masks on the devices that use them.

A handle never changes for its users. Masks are uploaded and decoded once per device, behind one
another on the stream of the first who asks; nobody waits on the host. Other streams wait for that
on the device.
"""

from collections.abc import Sequence
from threading import Lock

import torch

from sift_index.errors import PlanError
from sift_index.kernels.api import DevicePlan, MaskLayout, SparsePlan, device_plan
from sift_index.runtime.plan import PromptPlan
from sift_index.serving.counters import ServingCounters, ServingSnapshot
from sift_index.serving.visits import Visits


class RequestHandle:
    """A request's plan on one rank; safe to share between threads and streams.

    plan: the whole prompt's. sparse: the same for this rank's heads.
    """

    def __init__(self, plan: PromptPlan, sparse: SparsePlan, counters: ServingCounters) -> None:
        self.plan = plan
        self.sparse = sparse
        self._counters = counters
        self._lock = Lock()
        self._decoded: dict[torch.device, _Decoded] = {}

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

    def check(self, ids: Sequence[int], start: int) -> None:
        """Raise PlanError unless ids from position `start` on are the plan's.

        Ids behind the prompt's end were generated and may be any.
        """
        if start < 0:
            raise PlanError(f"expected a position from 0, found {start}; pass that of the first id")
        difference = self.plan.first_difference(torch.tensor(ids, dtype=torch.int64), start)
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
        self._on(device)

    def on(self, device: torch.device) -> DevicePlan:
        """Return the decoded plan for `device` and its current stream, made at the first call."""
        return self._on(device).for_stream()

    def visits(self, device: torch.device) -> Visits:
        """Return what ranges of rows visit, as counted on `device`."""
        return self._on(device).visits

    def _on(self, device: torch.device) -> "_Decoded":
        with self._lock:
            found = self._decoded.get(device)
            if found is None:
                found = self._decoded[device] = _Decoded(device_plan(self.sparse, device))
                self._counters.add(ServingSnapshot(bytes_uploaded=_uploaded(found.plan)))
            return found


class _Decoded:
    """A plan on one device, as it was decoded on one stream and is used on any."""

    def __init__(self, plan: DevicePlan) -> None:
        self.plan = plan
        self.visits = Visits(plan)
        self._of_stream = {self._stream(): plan}
        self._done = None
        if plan.device.type == "cuda":
            self._done = torch.cuda.current_stream(plan.device).record_event()

    def for_stream(self) -> DevicePlan:
        """Return the plan for the current stream; each has its own, with chunks of its own."""
        found = self._of_stream.get(self._stream())
        return self._shared() if found is None else found

    def _stream(self) -> int:
        """Return what tells the current stream from others; a CPU has one."""
        device = self.plan.device
        return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0

    def _shared(self) -> DevicePlan:
        plan, stream = self.plan, torch.cuda.current_stream(self.plan.device)
        if self._done is not None:
            stream.wait_event(self._done)
        for x in (plan.page_start, plan.offsets, plan.counts, plan.starts, plan.bits):
            x.record_stream(stream)  # freed memory must not be reused before this stream is done
        return self._of_stream.setdefault(stream.cuda_stream, plan.for_another_stream())


def _uploaded(plan: DevicePlan) -> int:
    """Return the bytes brought to the device: packed bits and the prompt's int32 tables."""
    page_columns, slots = 6 * plan.page_start.numel(), plan.counts.shape[-1]
    return plan.bits.nbytes + 4 * (page_columns + slots + plan.row_tiles.size)
