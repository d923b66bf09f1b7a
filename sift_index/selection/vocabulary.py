"""Token ids that a model has no embedding for: on a GPU they would end the process."""

from collections.abc import Sequence

import numpy as np

from sift_index.errors import UsageError
from sift_index.formats.identity import token_bytes


def require_known(ids: Sequence[int], vocabulary: int) -> None:
    """Raise UsageError unless ids are one dimension of token ids below the vocabulary size."""
    largest = int(np.frombuffer(token_bytes(ids), "<u4").max(initial=0))
    if largest >= vocabulary:
        raise UsageError(
            f"expected token ids below the vocabulary size {vocabulary}, found {largest}; use the "
            "tokenizer that belongs to this model"
        )
