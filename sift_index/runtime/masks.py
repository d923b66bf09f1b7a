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
    with warnings.catch_warnings():
        # Mapped files are read-only and nothing here writes to a plan's bits.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(packed)
