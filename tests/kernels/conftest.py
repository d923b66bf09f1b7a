"""Triton on the device at hand: compiled on a GPU, interpreted on a machine without one."""

import pytest
import torch


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where Triton kernels are tested."""
    pytest.importorskip("triton")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
