"""Energy: NVML's counter in joules, or the reason why there is none."""

import sys
from types import SimpleNamespace

import pytest
import torch

from sift_index.bench.ttft_energy import energy_meter

GPU = torch.device("cuda", 0)


class NVMLError(Exception):
    """As in pynvml."""


@pytest.fixture
def nvml(monkeypatch):
    """A driver whose counter moves by 1,500 mJ at each look."""
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="ab-12")
    )
    looks = iter(range(0, 10**6, 1500))
    fake = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda name: {"GPU-ab-12": "handle"}[name],
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: {"handle": next(looks)}[handle],
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_millijoules_become_joules(nvml):
    meter = energy_meter(GPU)
    assert meter.joules is not None and not meter.reason
    assert meter.joules() == 1.5 and meter.joules() == 3.0  # one look was to see that it works


def test_a_device_without_counter_says_so(nvml):
    def unsupported(handle):
        raise NVMLError("Not Supported")

    nvml.nvmlDeviceGetTotalEnergyConsumption = unsupported
    assert energy_meter(GPU).joules is None
    assert "no energy counter for this device: Not Supported" in energy_meter(GPU).reason


def test_without_the_package_there_is_a_hint(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert energy_meter(GPU).reason == "nvidia-ml-py is not installed (pip install nvidia-ml-py)"


def test_a_cpu_has_none():
    assert energy_meter(torch.device("cpu")).joules is None
