"""Tests that need an NVIDIA GPU of the Hopper generation; elsewhere each is skipped."""

import pytest
import torch

from sift_index.kernels import hopper_attention


@pytest.fixture(scope="session", autouse=True)
def hopper() -> torch.device:
    """The device, where the Gluon kernel can run on it."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    found = torch.cuda.get_device_capability()
    if found != hopper_attention.CAPABILITY:
        pytest.skip(f"the GPU is sm_{found[0]}{found[1]}, not sm_90")
    if reason := hopper_attention.gluon_obstacle():
        pytest.skip(reason)
    return torch.device("cuda")
