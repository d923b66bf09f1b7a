"""A plan on the devices that use it: decoded once on each, for any thread and stream.

Masks are uploaded and decoded behind one another on the stream of the first who asks; nobody waits
on the host. Other streams wait for that on the device.
"""

from threading import Lock

import torch

from sift_index.kernels.api import DevicePlan, SparsePlan, device_plan


class DecodedPlans:
    """A plan, decoded at its first use on each device; safe to share between threads."""

    def __init__(self, plan: SparsePlan) -> None:
        self._plan = plan
        self._lock = Lock()
        self._decoded: dict[torch.device, _Decoded] = {}

    def on(self, device: torch.device) -> DevicePlan:
        """Return the plan decoded on `device`, for its current stream."""
        with self._lock:
            found = self._decoded.get(device)
            if found is None:
                found = self._decoded[device] = _Decoded(device_plan(self._plan, device))
            return found.for_stream()


class _Decoded:
    """A plan on one device, as it was decoded on one stream and is used on any."""

    def __init__(self, plan: DevicePlan) -> None:
        self._plan = plan
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
        device = self._plan.device
        return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0

    def _shared(self) -> DevicePlan:
        plan, stream = self._plan, torch.cuda.current_stream(self._plan.device)
        if self._done is not None:
            stream.wait_event(self._done)
        for x in (plan.page_start, plan.offsets, plan.counts, plan.starts, plan.bits):
            x.record_stream(stream)  # freed memory must not be reused before this stream is done
        return self._of_stream.setdefault(stream.cuda_stream, plan.for_another_stream())
