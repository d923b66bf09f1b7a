"""A few documents extracted for the time they take, and the bytes their rows need."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sift_index.formats.blob import Codec
from sift_index.formats.masks import DocumentMasks
from sift_index.formats.packs import pack_bytes

UNIT = "0" * 32
# Bytes of a pack without rows: header, schema and footer.
PACK_OVERHEAD = len(pack_bytes(UNIT, UNIT, []))


@dataclass(frozen=True)
class Sample:
    """What a sample of documents took. row_bytes: in a pack, without the pack itself."""

    tokens: int
    seconds: float
    row_bytes: int


def measure(run: Callable[[], Sequence[DocumentMasks]], codec: Codec) -> Sample:
    """Time `run`, the encoding of its rows included."""
    started = time.monotonic()
    rows = run()
    size = len(pack_bytes(UNIT, UNIT, rows, codec))
    seconds = time.monotonic() - started
    return Sample(sum(row.tokens for row in rows), seconds, size - PACK_OVERHEAD)


def mean_sample(found: Sequence[Sample]) -> Sample:
    """Return the mean of several measurements of the same documents."""
    seconds = sum(sample.seconds for sample in found) / len(found)
    return Sample(found[0].tokens, seconds, found[0].row_bytes)
