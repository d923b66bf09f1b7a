"""Batches: documents that share a forward pass, cut by a budget of tokens and halved when too big.

The budget is part of the configuration, never of the machine: how rows are grouped decides the last
bits of what matrix multiplication makes of them.
"""

import logging
from collections.abc import Iterator, Sequence

import torch

from sift_index.selection.extraction import Extraction
from sift_index.selection.extractor import Extractor

BATCH_TOKENS = 16384
# Documents of a batch: each takes at least a tile of the probe bank's work, however short it is.
MOST_DOCUMENTS = 2048

Ids = Sequence[int]

_log = logging.getLogger("sift_index.selection")


def cut_batches(documents: Sequence[Ids], batch_tokens: int) -> Iterator[Sequence[Ids]]:
    """Yield runs of documents of at most `batch_tokens` tokens; a longer one runs alone."""
    begin = tokens = 0
    for number, ids in enumerate(documents):
        full = tokens + len(ids) > batch_tokens or number - begin == MOST_DOCUMENTS
        if full and number > begin:
            yield documents[begin:number]
            begin, tokens = number, 0
        tokens += len(ids)
    if documents:
        yield documents[begin:]


def launch_batches(
    extractor: Extractor, documents: Sequence[Ids], batch_tokens: int
) -> Iterator[tuple[Sequence[Ids], Extraction | None]]:
    """Start to extract documents batch by batch, in order; yields each batch with what it came to.

    A batch that does not fit in memory is halved, with one line in the log; a document that does
    not fit by itself comes with None. Raises UsageError as `Extractor.launch`.
    """
    for batch in cut_batches(documents, batch_tokens):
        yield from _launch(extractor, batch)


def _launch(
    extractor: Extractor, batch: Sequence[Ids]
) -> Iterator[tuple[Sequence[Ids], Extraction | None]]:
    launched = _unless_too_big(extractor, batch)
    if launched is not None or len(batch) == 1:
        yield batch, launched
        return
    _log.warning(
        "out of memory with %d documents of %d tokens in one batch: going on with halves",
        len(batch),
        sum(map(len, batch)),
    )
    middle = len(batch) // 2
    yield from _launch(extractor, batch[:middle])
    yield from _launch(extractor, batch[middle:])


def _unless_too_big(extractor: Extractor, batch: Sequence[Ids]) -> Extraction | None:
    """Return a launched batch, or None; no frame of the failure keeps tensors alive behind it."""
    try:
        return extractor.launch(batch)
    except torch.OutOfMemoryError:
        pass
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return None
