"""Probe texts from a corpus: what its own domain attends to is what its documents must offer.

Documents are taken in the order of the hash of their text, so that the sample is the same whatever
the files are called and in whichever order they are read.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from sift_index.errors import UsageError
from sift_index.selection.policy import ProbePolicy

PROBES = 4
JOINT = "\n\n"
LEAST_TOKENS = 64
CHARACTERS = 4  # of a token, roughly
SPARE = 8  # times as many characters are kept, since the estimate may be wrong


@dataclass(frozen=True)
class CorpusProbe:
    """One probe text and the ids of the documents it is made of, in order."""

    text: str
    documents: tuple[str, ...]


def sample_probes(
    documents: Iterable[tuple[str, str]], count_tokens: Callable[[str], int], policy: ProbePolicy
) -> list[CorpusProbe]:
    """Return up to 4 texts of at least `probe_tokens` tokens, made of (id, text) documents.

    One pass; of the texts only candidates stay in memory. Texts are joined until long enough and
    never cut; line ends are those that reading a text file gives. Where the corpus ends first
    there are fewer, and the last may be shorter, down to a window or 64 tokens. Blank texts and
    repeated ones do not count. UsageError when there is none.
    """
    candidates = _Candidates(policy.probe_tokens * CHARACTERS * SPARE)
    for name, text in documents:
        if text.strip():
            candidates.add(name, text.replace("\r\n", "\n").replace("\r", "\n"))
    made = list(_joined(candidates.in_order(), count_tokens, policy.probe_tokens))
    least = max(policy.window, min(LEAST_TOKENS, policy.probe_tokens))
    found = [probe for probe, tokens in made if tokens >= least]
    if not found:
        longest = max((tokens for _, tokens in made), default=0)
        raise UsageError(
            f"expected a corpus with at least {least} tokens of text for probe_source 'corpus', "
            f"found {longest}; use probe_source builtin, or a folder of texts"
        )
    return found


def _joined(
    documents: Iterable[tuple[str, str]], count_tokens: Callable[[str], int], wanted: int
) -> Iterator[tuple[CorpusProbe, int]]:
    """Yield up to `PROBES` probes with their tokens; the last may be too short."""
    made, text = 0, ""
    names: tuple[str, ...] = ()
    for name, more in documents:
        text, names = text + JOINT + more if names else more, (*names, name)
        if (tokens := count_tokens(text)) >= wanted:
            yield CorpusProbe(text, names), tokens
            made, text, names = made + 1, "", ()
        if made == PROBES:
            return
    if names:
        yield CorpusProbe(text, names), tokens


@dataclass
class _Candidates:
    """The texts of the smallest hashes that together are sure to make all probes.

    `enough`: characters that surely make one probe; a longer text counts no more than that, lest
    one book crowds out all others.
    """

    enough: int
    _heap: list[tuple[int, str]] = field(default_factory=list)  # the largest hash on top
    _names: dict[int, str] = field(default_factory=dict)
    _held: int = 0

    def add(self, name: str, text: str) -> None:
        """Take in a document; what is no longer needed goes."""
        order = -int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest())
        if order in self._names:
            # Of equal texts the first id by name, so that reading order does not matter.
            self._names[order] = min(self._names[order], name)
            return
        heappush(self._heap, (order, text))
        self._names[order] = name
        self._held += self._weight(text)
        while self._held - self._weight(self._heap[0][1]) >= PROBES * self.enough:
            order, text = heappop(self._heap)
            del self._names[order]
            self._held -= self._weight(text)

    def in_order(self) -> Iterator[tuple[str, str]]:
        """Yield (id, text) from the smallest hash up."""
        for order, text in sorted(self._heap, reverse=True):
            yield self._names[order], text

    def _weight(self, text: str) -> int:
        return min(len(text), self.enough)
