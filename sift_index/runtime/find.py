"""Finding indexed documents in a raw prompt: nobody has to say where they are.

An index keeps an anchor for every key, the hash of its document's first 16 tokens. A prompt is
hashed at every offset; where a hash is an anchor, the documents it may begin are checked by their
full keys. Nothing is found by chance, and documents of fewer than 16 tokens are not found at all.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from sift_index.formats.identity import ANCHOR_TOKENS, KEY_BYTES, token_bytes
from sift_index.formats.reader import IndexReader
from sift_index.runtime.compose import WORD

ANCHOR_BYTES = 8


@dataclass(frozen=True)
class FoundSpan:
    """An indexed document at [start, stop) of a prompt, by its 16-byte key."""

    start: int
    stop: int
    key: bytes


class SpanFinder:
    """Looks for the documents of one opened index; safe to share between threads."""

    def __init__(self, reader: IndexReader) -> None:
        self._reader = reader
        # Lengths of the documents that begin with an anchor, as far as they were asked for.
        self._lengths: dict[int, tuple[int, ...]] = {}

    def find(self, ids: Sequence[int]) -> list[FoundSpan]:
        """Return the documents in a prompt in order; of those that overlap the longest counts.

        Of two of one length the first counts. ids: token ids of one prompt. Costs a hash a token,
        about 1 us, and where something begins as documents do, a hash and a look-up for each of
        their lengths: some 10 ms a place for 2,000 documents that share a header of 16 tokens.
        Raises UsageError for ids that are not one dimension of token ids, IntegrityError for a
        damaged index.
        """
        found = sorted(
            self._candidates(token_bytes(ids)),
            key=lambda span: (span.start - span.stop, span.start),
        )
        return _apart(found)

    def _candidates(self, data: bytes) -> Iterator[FoundSpan]:
        anchors, _ = self._sorted
        if len(data) < WORD * ANCHOR_TOKENS or not len(anchors):
            return
        hashes = _anchors(data)
        place = np.minimum(anchors.searchsorted(hashes), len(anchors) - 1)
        for start in np.flatnonzero(anchors[place] == hashes).tolist():
            for length, key in _keys(data, start, self._lengths_of(int(hashes[start]))):
                if key in self._reader:
                    yield FoundSpan(start, start + length, key)

    def _lengths_of(self, anchor: int) -> tuple[int, ...]:
        """Return the lengths of all documents that begin with an anchor, in rising order."""
        known = self._lengths.get(anchor)
        if known is None:
            anchors, positions = self._sorted
            first, stop = (int(anchors.searchsorted(anchor, side)) for side in ("left", "right"))
            known = tuple(sorted(set(self._reader.token_counts(positions[first:stop].tolist()))))
            self._lengths[anchor] = known
        return known

    @cached_property
    def _sorted(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """The anchors in order, and the place in the key table of each."""
        anchors = self._reader.keys.anchors()
        positions = np.argsort(anchors, kind="stable")
        positions = positions[np.count_nonzero(anchors == 0) :]  # 0 says that there is none
        return anchors[positions], positions


def _keys(data: bytes, start: int, lengths: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Yield each length, in rising order, whose ids the prompt has from `start` on, and their key.

    Every id is hashed once, however many documents begin with one header (`identity.key_of`).
    """
    view, at = memoryview(data), WORD * start
    hashed = blake2b(digest_size=KEY_BYTES)
    for length in lengths:
        stop = WORD * (start + length)
        if stop > len(data):
            return
        hashed.update(view[at:stop])
        at = stop
        yield length, hashed.digest()


def _anchors(data: bytes) -> NDArray[np.uint64]:
    """Return the anchor at every offset of at least 16 ids (`identity.anchor`), uint64 [n - 15]."""
    view, width = memoryview(data), WORD * ANCHOR_TOKENS
    hashed = (
        blake2b(view[at : at + width], digest_size=ANCHOR_BYTES).digest()
        for at in range(0, len(data) - width + 1, WORD)
    )
    found = np.frombuffer(b"".join(hashed), "<u8").astype(np.uint64)
    found[found == 0] = 1
    return found


def _apart(spans: list[FoundSpan]) -> list[FoundSpan]:
    """Return those that overlap none in front of them in the list, sorted by position."""
    starts: list[int] = []
    kept: list[FoundSpan] = []
    for span in spans:
        at = bisect_left(starts, span.start)
        before = at == 0 or kept[at - 1].stop <= span.start
        behind = at == len(kept) or span.stop <= kept[at].start
        if before and behind:
            starts.insert(at, span.start)
            kept.insert(at, span)
    return kept
