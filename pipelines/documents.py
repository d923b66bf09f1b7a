"""From a place in the corpus to the pieces that get indexed: read, tokenise, split, key.

The planner does it once to learn keys and lengths, workers do it again for the ids themselves; a
key that differs the second time means that the file changed in between.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeGuard

from sift_index.errors import DocumentError
from sift_index.formats.failures import FailedDocument
from sift_index.formats.identity import document_key
from sift_index.models.loading import load_tokenizer
from sift_index.models.presets import PromptTemplate
from sift_index.pipelines.agreement import require_tokenizer
from sift_index.pipelines.corpus import CorpusReader, Document, Location
from sift_index.prompts import PromptWriter
from sift_index.runtime.compose import split_ids

# Texts given to the tokenizer at once, and about how many characters of them are in memory.
TEXTS, CHARACTERS = 256, 1 << 20
CHANGED = (
    "the document changed while the build ran: its token ids are not the planned ones; run the "
    "same command again to index it as it is now"
)


@dataclass(frozen=True)
class DocumentRules:
    """How texts become pieces; picklable, the same in the driver and in every worker.

    `tokenizer` is the digest of the driver's; every process that tokenises must have the same.
    """

    model: str
    template: PromptTemplate
    longest: int
    long: str
    tokenizer: str = ""


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


@dataclass(frozen=True)
class OverlongDocument(FailedDocument):
    """A document that fails for its length alone: unlike others that fail, its id is known."""

    id: str


Scanned = ScannedDocument | SkippedDocument | FailedDocument


@lru_cache(maxsize=4)
def prompt_writer(model: str, template: PromptTemplate, tokenizer: str = "") -> PromptWriter:
    """Return the writer of a model, its tokenizer loaded once per process.

    Raises BuildError when it is another tokenizer than the driver's.
    """
    found = load_tokenizer(model)[0]
    require_tokenizer(model, tokenizer, found)
    return PromptWriter(found, template)


def scan_batch(
    reader: CorpusReader, locations: Sequence[Location], rules: DocumentRules
) -> list[Scanned]:
    """Read and tokenise some documents; what cannot be indexed comes back with its reason."""
    return [
        found if isinstance(found, FailedDocument) else _cut(reader, location, found.id, ids, rules)
        for location, found, ids in _tokenised(reader, locations, rules)
    ]


def read_pieces(
    reader: CorpusReader, pieces: Sequence[Piece], rules: DocumentRules
) -> list[Sequence[int] | FailedDocument]:
    """Return the token ids of planned pieces, or why there are none; a document is read once."""
    wanted: dict[Location, list[int]] = {}
    for place, piece in enumerate(pieces):
        wanted.setdefault(piece.location, []).append(place)
    ids_of: dict[int, Sequence[int] | FailedDocument] = {}
    for location, found, ids in _tokenised(reader, list(wanted), rules):
        parts = split_ids(ids, rules.longest)
        for place in wanted[location]:
            failed = found if isinstance(found, FailedDocument) else None
            ids_of[place] = failed or _planned(reader, pieces[place], parts)
    return [ids_of[place] for place in range(len(pieces))]


def _planned(
    reader: CorpusReader, piece: Piece, parts: Sequence[Sequence[int]]
) -> Sequence[int] | FailedDocument:
    """Return the part of a document that a piece was planned as, if it is still the same."""
    ids = list(parts[piece.number]) if piece.number < len(parts) else []
    if ids and document_key(ids) == piece.key:
        return ids
    return FailedDocument(reader.source(piece.location), CHANGED)


_Read = tuple[Location, Document | FailedDocument]


def _tokenised(
    reader: CorpusReader, locations: Sequence[Location], rules: DocumentRules
) -> Iterator[tuple[Location, Document | FailedDocument, Sequence[int]]]:
    """Yield what was read with its token ids: none for an empty text, or for what failed."""
    writer = prompt_writer(rules.model, rules.template, rules.tokenizer)
    for part in _parts(reader, locations):
        texts = [found.text for _, found in part if _has_text(found)]
        tokenised = iter(writer.documents(texts))
        for location, found in part:
            yield location, found, next(tokenised) if _has_text(found) else []


def _parts(reader: CorpusReader, locations: Sequence[Location]) -> Iterator[list[_Read]]:
    """Yield what was read, in parts that the tokenizer is given at once."""
    part: list[_Read] = []
    room = CHARACTERS
    for location in locations:
        document = _read(reader, location)
        part.append((location, document))
        room -= len(document.text) if isinstance(document, Document) else 0
        if len(part) == TEXTS or room <= 0:
            yield part
            part, room = [], CHARACTERS
    yield part


def _read(reader: CorpusReader, location: Location) -> Document | FailedDocument:
    try:
        return reader.read(location)
    except DocumentError as problem:
        return FailedDocument(reader.source(location), str(problem))


def _has_text(found: Document | FailedDocument) -> TypeGuard[Document]:
    return isinstance(found, Document) and bool(found.text.strip())


def _cut(
    reader: CorpusReader, location: Location, name: str, ids: Sequence[int], rules: DocumentRules
) -> Scanned:
    """Cut a document into pieces, or say why it is left out."""
    pieces = split_ids(ids, rules.longest)
    if not pieces:
        return SkippedDocument(reader.source(location), "empty")
    if len(pieces) > 1 and rules.long == "skip":
        return SkippedDocument(reader.source(location), "too_long")
    if len(pieces) > 1 and rules.long != "split":
        return OverlongDocument(
            reader.source(location),
            f"{len(ids)} tokens, at most {rules.longest} fit; use --long split or --long skip",
            name,
        )
    keyed = (Piece(document_key(part), len(part), location, n) for n, part in enumerate(pieces))
    return ScannedDocument(name, tuple(keyed))
