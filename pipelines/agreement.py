"""All nodes must build the same: the driver plans with a tokenizer, workers compute with theirs.

A node with another version of a model's files would give other token ids, hence other keys, and
every document would seem to have changed. It is refused by name instead.
"""

import socket
from typing import Any

from sift_index.errors import BuildError
from sift_index.formats.fingerprint import Fingerprint, differences
from sift_index.models.digests import tokenizer_digest

CURE = (
    "make the model's files and the versions of transformers and tokenizers the same on every "
    "node, then run the same command again"
)


def require_tokenizer(model: str, expected: str, tokenizer: Any) -> None:
    """Raise BuildError when a tokenizer is not the driver's; an empty `expected` is any."""
    if expected:
        require_tokenizer_digest(model, expected, tokenizer_digest(tokenizer), socket.gethostname())


def require_tokenizer_digest(model: str, expected: str, found: str, where: str) -> None:
    """Raise BuildError naming both digests when they differ."""
    if found != expected:
        raise BuildError(
            f"tokenizer of {model}: expected {expected}, the driver's, found {found} on {where}; "
            f"{CURE}"
        )


def require_same_worker(first: Fingerprint, found: Fingerprint) -> None:
    """Raise BuildError naming what a worker would build otherwise than the first one."""
    lines = differences(first.build, found.build, "build", ("the first worker", "this one"))
    if lines:
        listed = "".join(f"\n  {line}" for line in lines)
        raise BuildError(f"a worker would build something else; {CURE}:{listed}")
