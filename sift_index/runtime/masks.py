"""From stored masks to the tensors a plan holds."""

import warnings

import numpy as np
import torch

from sift_index.formats.masks import DocumentMasks
from sift_index.kernels.api import SpanMask


def span_mask(masks: DocumentMasks, start: int) -> SpanMask:
    """Return a document's bits placed at `start`; the bytes stay where they are (no copy)."""
    la = None if masks.la is None else _tensor(masks.la.packed)
    return SpanMask(start, start + masks.tokens, _tensor(masks.ca.packed), la)


def _tensor(packed: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(packed)


def _hear_the_warning() -> None:
    """PyTorch says once per process that an array is not writable; nobody needs to hear it.

    Mapped files are read-only, and nothing writes to a plan's bits. To filter the warning around
    every document took longer than to find it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.from_numpy(np.frombuffer(b"\0", np.uint8))


_hear_the_warning()
