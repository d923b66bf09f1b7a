"""From a place in the corpus to the pieces that get indexed: read, tokenise, split, key.

The planner does it once to learn keys and lengths, workers do it again for the ids themselves; a
key that differs the second time means that the file changed in between.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

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
    return [item for part in _parts(reader, locations) for item in _scan(reader, part, rules)]


_Read = tuple[Location, Document | FailedDocument]


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


def _scan(reader: CorpusReader, part: Sequence[_Read], rules: DocumentRules) -> Iterator[Scanned]:
    texts = [found.text for _, found in part if isinstance(found, Document) and _has_text(found)]
    tokenised = iter(prompt_writer(rules.model, rules.template, rules.tokenizer).documents(texts))
    for location, found in part:
        if isinstance(found, FailedDocument):
            yield found
        elif not _has_text(found):
            yield SkippedDocument(reader.source(location), "empty")
        else:
            yield _cut(reader, location, found.id, next(tokenised), rules)


def _cut(
    reader: CorpusReader, location: Location, name: str, ids: Sequence[int], rules: DocumentRules
) -> Scanned:
    """Cut a document that is not empty into pieces, or say why it is left out."""
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


def read_pieces(
    reader: CorpusReader, location: Location, rules: DocumentRules
) -> tuple[str, list[Sequence[int]]]:
    """Return a document's id and the token ids of its pieces; none for an empty text.

    Raises DocumentError when it cannot be read.
    """
    document = reader.read(location)
    if not _has_text(document):
        return document.id, []
    ids = prompt_writer(rules.model, rules.template, rules.tokenizer).document(document.text)
    return document.id, split_ids(ids, rules.longest)


def _has_text(document: Document) -> bool:
    return bool(document.text.strip())
