"""What a scan of some documents found, as arrays: what travels from a task to the driver.

An object a document would cost the driver a kilobyte of memory and most of its time to unpickle.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sift_index.formats.failures import FailedDocument
from sift_index.formats.keyorder import Keys, stack_keys
from sift_index.pipelines.documents import (
    OverlongDocument,
    Scanned,
    ScannedDocument,
    SkippedDocument,
)


@dataclass(frozen=True, eq=False)
class ScannedBatch:
    """Scanned documents in corpus order: d that can be indexed, with p pieces, and the others.

    `id_text` uint8 holds their ids in UTF-8, `id_bytes` int32 [d] the length of each. `pieces`
    int32 [d] counts the pieces, whose `keys` uint8 [p, 16] and `tokens` uint32 [p] follow each
    other. Document i lies in file `files[file[i]]` at `position[i]`; `files` have no twin in a row.
    The first `unread` of `failed` may hide any document id, the others, `kept_ids`, are known.
    """

    id_text: NDArray[np.uint8]
    id_bytes: NDArray[np.int32]
    pieces: NDArray[np.int32]
    keys: Keys
    tokens: NDArray[np.uint32]
    file: NDArray[np.int32]
    position: NDArray[np.int64]
    files: tuple[str, ...]
    skipped: Mapping[str, int]
    failed: tuple[FailedDocument, ...]
    kept_ids: tuple[str, ...]

    @property
    def read(self) -> int:
        """Number of places in the corpus that this is about."""
        return len(self.pieces) + sum(self.skipped.values()) + len(self.failed)

    @property
    def unread(self) -> int:
        """Number of failures that may hide any document id."""
        return len(self.failed) - len(self.kept_ids)


def scanned_batch(found: Iterable[Scanned]) -> ScannedBatch:
    """Return scanned documents as arrays, in the same order."""
    items = list(found)
    documents = [item for item in items if isinstance(item, ScannedDocument)]
    overlong = [item for item in items if isinstance(item, OverlongDocument)]
    failed = (item for item in items if isinstance(item, FailedDocument))
    unread = [item for item in failed if not isinstance(item, OverlongDocument)]
    skipped = Counter(item.reason for item in items if isinstance(item, SkippedDocument))
    pieces = [piece for document in documents for piece in document.pieces]
    names = [document.id.encode() for document in documents]
    files, file = _runs([document.location.file for document in documents])
    return ScannedBatch(
        id_text=np.frombuffer(b"".join(names), np.uint8),
        id_bytes=_array(map(len, names), np.int32, len(names)),
        pieces=_array((len(document.pieces) for document in documents), np.int32, len(names)),
        keys=stack_keys(b"".join(piece.key for piece in pieces)),
        tokens=_array((piece.tokens for piece in pieces), np.uint32, len(pieces)),
        file=_array(file, np.int32, len(names)),
        position=_array((d.location.position for d in documents), np.int64, len(names)),
        files=files,
        skipped=skipped,
        failed=tuple(FailedDocument(item.source, item.reason) for item in [*unread, *overlong]),
        kept_ids=tuple(item.id for item in overlong),
    )


def _array(values: Iterable[int], kind: Any, count: int) -> NDArray[Any]:
    return np.fromiter(values, kind, count)


def _runs(names: Sequence[str]) -> tuple[tuple[str, ...], list[int]]:
    """Return the names without twins in a row, and for each name the number of its run."""
    runs: list[str] = []
    numbers = []
    for name in names:
        if not runs or runs[-1] != name:
            runs.append(name)
        numbers.append(len(runs) - 1)
    return tuple(runs), numbers
