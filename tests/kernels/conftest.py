"""Triton on the device at hand: compiled on a GPU, interpreted on a machine without one."""

import os
import sys

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def _interpret_the_standard_library() -> None:
    """Undo an import of Triton that came before this file, by the model code of other tests.

    `tl.max` and its like are wrapped when Triton is imported, as our kernels are when they are.
    """
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    for name, value in list(vars(tl.standard).items()):
        if isinstance(value, JITFunction):
            interpreted = InterpretedFunction(value.fn)
            setattr(tl.standard, name, interpreted)
            if getattr(tl, name, None) is value:
                setattr(tl, name, interpreted)


if not torch.cuda.is_available() and "triton.language" in sys.modules:
    _interpret_the_standard_library()


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where Triton kernels are tested."""
    pytest.importorskip("triton")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
