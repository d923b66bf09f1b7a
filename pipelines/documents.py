"""From a place in the corpus to the pieces that get indexed: read, tokenise, split, key.

The planner does it once to learn keys and lengths, workers do it again for the ids themselves; a
key that differs the second time means that the file changed in between.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from sift_index.errors import DocumentError
from sift_index.formats.failures import FailedDocument
from sift_index.formats.identity import document_key
from sift_index.models.loading import load_tokenizer
from sift_index.models.presets import PromptTemplate
from sift_index.pipelines.corpus import CorpusReader, Location
from sift_index.prompts import PromptWriter
from sift_index.runtime.compose import split_ids


@dataclass(frozen=True)
class DocumentRules:
    """How texts become pieces; picklable, the same in the driver and in every worker."""

    model: str
    template: PromptTemplate
    longest: int
    long: str


@dataclass(frozen=True)
class Piece:
    """What one row of the index stands for: `number` counts the pieces of a split document."""

    key: bytes
    tokens: int
    location: Location
    number: int


@dataclass(frozen=True)
class ScannedDocument:
    """One readable document: its id and its pieces in order, at least one."""

    id: str
    pieces: tuple[Piece, ...]

    @property
    def keys(self) -> tuple[bytes, ...]:
        """Keys of the pieces, in order."""
        return tuple(piece.key for piece in self.pieces)

    @property
    def location(self) -> Location:
        """Where this document lies, also when its text is another one's."""
        return self.pieces[0].location


@dataclass(frozen=True)
class SkippedDocument:
    """A document left out on purpose: `reason` is empty or too_long."""

    source: str
    reason: str


Scanned = ScannedDocument | SkippedDocument | FailedDocument


@lru_cache(maxsize=4)
def prompt_writer(model: str, template: PromptTemplate) -> PromptWriter:
    """Return the writer of a model, its tokenizer loaded once per process."""
    return PromptWriter(load_tokenizer(model)[0], template)


def scan_batch(
    reader: CorpusReader, locations: Sequence[Location], rules: DocumentRules
) -> list[Scanned]:
    """Read and tokenise some documents; what cannot be indexed comes back with its reason."""
    return [_scan(reader, location, rules) for location in locations]


def _scan(reader: CorpusReader, location: Location, rules: DocumentRules) -> Scanned:
    try:
        document, pieces = read_pieces(reader, location, rules)
    except DocumentError as problem:
        return FailedDocument(reader.source(location), str(problem))
    if not pieces:
        return SkippedDocument(reader.source(location), "empty")
    if len(pieces) > 1 and rules.long != "split":
        tokens = sum(len(ids) for ids in pieces)
        if rules.long == "skip":
            return SkippedDocument(reader.source(location), "too_long")
        return FailedDocument(
            reader.source(location),
            f"{tokens} tokens, at most {rules.longest} fit; use --long split or --long skip",
        )
    keyed = (Piece(document_key(ids), len(ids), location, n) for n, ids in enumerate(pieces))
    return ScannedDocument(document, tuple(keyed))


def read_pieces(
    reader: CorpusReader, location: Location, rules: DocumentRules
) -> tuple[str, list[Sequence[int]]]:
    """Return a document's id and the token ids of its pieces; none for an empty text.

    Raises DocumentError when it cannot be read.
    """
    document = reader.read(location)
    if not document.text.strip():
        return document.id, []
    ids = prompt_writer(rules.model, rules.template).document(document.text)
    return document.id, split_ids(ids, rules.longest)
