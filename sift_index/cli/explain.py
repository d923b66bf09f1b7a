"""`sift-index explain`: which documents of a prompt are found, and how sparse it gets."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sift_index.cli.frame import emit, framed, table
from sift_index.cli.location import GIVEN_PATH, index_location
from sift_index.errors import SiftError, UsageError
from sift_index.formats.location import Location
from sift_index.runtime.levels import QUALITIES

if TYPE_CHECKING:
    from sift_index.prompts import Segment
    from sift_index.runtime.explain import Explanation
    from sift_index.runtime.index import SiftIndex

DEFAULT_QUESTION = "What do these documents say?"


@click.command()
@click.argument("index", type=index_location)
@click.argument("documents", type=GIVEN_PATH, nargs=-1, required=True)
@click.option("--question", default=DEFAULT_QUESTION, show_default=True)
@click.option("--model", help="Whose tokenizer: preset, folder or hub id.  [default: the index's]")
@click.option("--level", default=1, show_default=True, help="Which of the nested thresholds.")
@click.option("--quality", type=click.Choice(QUALITIES), help="The same in words.")
@click.option("--version", "number", type=int, help="An older version.  [default: the newest]")
@click.option(
    "--crossover",
    metavar="auto|off|PATH",
    help="Table of where sparse pays.  [default: $SIFT_CROSSOVER, else that of this GPU]",
)
@framed
def explain(
    index: Location,
    documents: tuple[Path, ...],
    question: str,
    model: str | None,
    level: int,
    quality: str | None,
    number: int | None,
    crossover: str | None,
    output: str,
) -> None:
    """Compose a prompt of text files and say what became of each.

    DOCUMENTS are files, in the order in which the prompt has them. A document is found by its
    tokens; where it is not, but the index knows a document of that name, its text has changed.

    \b
    Example:
      sift-index explain corpus.sift corpus/mill.txt corpus/dam.md --question "Who built the mill?"
      sift-index explain corpus.sift corpus/*.txt --quality fast --output json
    """
    import torch

    from sift_index.prompts import require_text
    from sift_index.runtime.crossover import find_crossover, packaged_tables, read_crossover
    from sift_index.runtime.explain import explain as explained
    from sift_index.runtime.index import SiftIndex

    require_text("--question", question)
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    table_of_device = find_crossover(crossover, place)
    opened = SiftIndex.open(index, version=number)
    prompt = _prompt(opened, documents, question, model)
    plan = opened.compose(prompt, level, quality)
    measured = map(read_crossover, sorted(packaged_tables().glob("*.yaml")))
    found = explained(plan, table_of_device, measured)
    parts = _parts(prompt, ["prefix", *map(str, documents), "question"], found)
    values = found.to_json()
    for one, part in zip(values["segments"], parts, strict=True):
        one["document"] = part.name
    emit(values, lambda console: _show(console, found, parts), output)


class _Part(NamedTuple):
    """Which part of the prompt a segment is a piece of: a document's path, prefix or question."""

    name: str
    piece: int
    pieces: int

    def __str__(self) -> str:
        name = Path(self.name).name
        return name if self.pieces == 1 else f"{name} ({self.piece} of {self.pieces})"


def _parts(
    prompt: Sequence["Segment"], names: Sequence[str], found: "Explanation"
) -> list["_Part"]:
    """Return of each segment its part: those longer than the index's longest are several pieces."""
    parts: list[_Part] = []
    stops = accumulate(len(segment.ids) for segment in prompt)
    for name, stop in zip(names, stops, strict=True):
        rest = found.segments[len(parts) :]
        count = next(n for n, one in enumerate(rest, 1) if one.stop == stop)
        parts += [_Part(name, number, count) for number in range(1, count + 1)]
    return parts


def _prompt(
    index: "SiftIndex", documents: tuple[Path, ...], question: str, model: str | None
) -> list["Segment"]:
    from sift_index.evaluation.questions import document_text
    from sift_index.models.digests import tokenizer_digest
    from sift_index.models.loading import load_tokenizer
    from sift_index.prompts import Segment

    recorded = index.fingerprint.advisory.get("model")
    name = model or recorded
    if not name:
        raise UsageError("the index names no model whose tokenizer can be loaded; give --model")
    try:
        tokenizer, template = load_tokenizer(str(name))
    except SiftError as error:
        if model:
            raise
        raise UsageError(
            f"the index names {recorded!r} as its model, whose tokenizer cannot be loaded here: "
            f"{error}; give --model"
        ) from error
    if tokenizer_digest(tokenizer) != index.fingerprint.advisory.get("tokenizer"):
        click.echo(
            f"warning: {name} has another tokenizer than the index was built with, so documents "
            "may not be found; give --model",
            err=True,
        )
    writer = index.writer_for(tokenizer, template.query)
    spans = [
        Segment(writer.document(document_text(path)), document=_known_name(index, path))
        for path in documents
    ]
    head, tail = (Segment(ids, glue=True) for ids in (writer.prefix(), writer.query(question)))
    return [head, *spans, tail]


def _known_name(index: "SiftIndex", path: Path) -> str | None:
    """Return the longest end of a path that is a document id of the index."""
    names = ("/".join(path.parts[at:]) for at in range(len(path.parts)))
    return next((name for name in names if index.reader.document_keys(name)), None)


def _show(console: Any, found: "Explanation", parts: Sequence[_Part]) -> None:
    from sift_index.runtime.explain import REASONS

    rows = [
        [str(part), f"{one.start:,}", f"{one.stop - one.start:,}", one.kind, REASONS[one.reason]]
        for part, one in zip(parts, found.segments, strict=True)
    ]
    console.print(table("Segments", ["document", "at", "tokens", "as", "why"], rows))
    shares = [("all", found.total), *((str(n), one) for n, one in enumerate(found.layers))]
    lines = [[n, f"{one.density:.3f}", f"{one.la:.3f}", f"{one.ca:.3f}"] for n, one in shares]
    title = "\nScores computed, by layer: of all, inside documents (LA), between them (CA)"
    console.print(table(title, ["layer", "density", "LA", "CA"], lines))
    split = any(part.pieces > 1 for part in parts)
    console.print(
        f"\n{found.hits} {'pieces of documents' if split else 'documents'} found, {found.misses} "
        f"not; at most {found.most:.2f} times as fast as dense attention"
    )
    for note in found.notes:
        console.print(f"note: {note}", markup=False)
