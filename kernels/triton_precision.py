"""How statistics kernels multiply float32, which tensor cores do not take as it is."""

import torch


def dot_precision() -> str:
    """Return Triton's `input_precision`: three TF32 products on NVIDIA, float32 elsewhere.

    They keep about 21 bits; exact products run without tensor cores, which takes many times as
    long and more registers than there are. Types of 16 bits are exact either way.
    """
    return "ieee" if torch.version.hip is not None else "tf32x3"
