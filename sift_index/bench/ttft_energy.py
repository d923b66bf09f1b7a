"""Energy of a GPU, read from the counter that its driver keeps."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import torch


@dataclass(frozen=True)
class EnergyMeter:
    """joules: returns the energy used since the driver started, None where nobody counts it.

    reason: why it is None.
    """

    joules: Callable[[], float] | None
    reason: str = ""


def energy_meter(device: torch.device) -> EnergyMeter:
    """Return the meter of a CUDA device, through NVML (package `nvidia-ml-py`).

    The counter is of the whole board, in millijoules, and moves some ten times a second.
    """
    if device.type != "cuda":
        return EnergyMeter(None, f"energy is counted for CUDA devices, not for {device.type}")
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return EnergyMeter(None, "nvidia-ml-py is not installed (pip install nvidia-ml-py)")
    try:
        nvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except nvml.NVMLError as problem:
        return EnergyMeter(None, f"NVML has no energy counter for this device: {problem}")
    return EnergyMeter(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)
