"""`sift-index bench compose`: what a prompt costs the host before any GPU sees it.

Composing a declared prompt, and finding the documents of a raw one among a million. Both with
everything warm, as in a server: files in memory, anchors sorted, rows checked once.
"""

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch

from sift_index.bench.compose_index import random_documents, write_compose_index
from sift_index.bench.lookup_index import IndexShape
from sift_index.errors import SiftWarning, UsageError
from sift_index.evaluation.results import ResultRow, result_rows
from sift_index.prompts import Segment
from sift_index.runtime.index import SiftIndex

BENCH = "lookup"  # the results file that it adds to
PREFIX, QUESTION = 40, 60  # tokens of the glue around the documents
Value = tuple[str, str, float, str]


@dataclass(frozen=True)
class ComposeOptions:
    """A prompt of `documents` documents in an index of this shape; among how many to find them.

    Finding looks at keys and anchors alone, so that index has masks of one layer and head.
    """

    shape: IndexShape
    documents: int = 64
    find_among: int = 1_000_000
    repeats: int = 50
    seed: int = 0
    folder: Path | None = None

    def check(self) -> None:
        """Raise UsageError for a prompt with more documents than an index."""
        self.shape.check()
        least = min(self.shape.documents, self.find_among or self.documents)
        if self.documents > least:
            raise UsageError(
                f"expected at most {least:,} documents in the prompt, as many as the index has, "
                f"found {self.documents:,}"
            )

    @property
    def tokens(self) -> int:
        """Tokens of the prompt."""
        return PREFIX + self.documents * self.shape.tokens + QUESTION


def bench_compose(options: ComposeOptions) -> Iterator[Value]:
    """Yield (case, metric, value, unit); indexes live in a temporary folder until measured."""
    options.check()
    documents = random_documents(options.documents, options.shape.tokens, options.seed)
    prompt = _prompt(documents, options.seed)
    case = f"{options.documents}docs"
    with _written(options, options.shape, documents, prompt) as index:
        _require(index.compose(prompt).hits, options.documents)
        yield case, "compose_ms", _median_ms(lambda: index.compose(prompt), options.repeats), "ms"
    if not options.find_among:
        return
    many = replace(options.shape, documents=options.find_among, layers=1, heads=1)
    ids = [i for segment in prompt for i in segment.ids]
    where = f"{round(len(ids) / 1024)}k-among-{options.find_among:,}".replace(",", "")
    with _written(options, many, documents, prompt) as index:
        started = time.perf_counter()
        _require(len(index.find_spans(ids)), options.documents)
        yield where, "find_first_ms", 1e3 * (time.perf_counter() - started), "ms"
        repeats = max(1, options.repeats // 10)
        yield where, "find_ms", _median_ms(lambda: index.find_spans(ids), repeats), "ms"


def compose_rows(values: list[Value], shape: IndexShape) -> list[ResultRow]:
    """Return the rows of the results file; the baseline says what the index was."""
    what = (
        f"documents of {shape.tokens:,} tokens, raw codec, hashing included, warm; composed among "
        f"{shape.documents:,} with masks of {shape.layers} layers x {shape.heads} heads, page "
        f"{shape.page}; found by keys alone, masks of one layer and head"
    )
    return result_rows(values, torch.device("cpu"), what)


def _prompt(documents: list[list[int]], seed: int) -> list[Segment]:
    head, tail = random_documents(1, PREFIX, seed + 1) + random_documents(1, QUESTION, seed + 2)
    return [Segment(head, glue=True), *map(Segment, documents), Segment(tail, glue=True)]


@contextmanager
def _written(
    options: ComposeOptions, shape: IndexShape, documents: list[list[int]], prompt: list[Segment]
) -> Iterator[SiftIndex]:
    """An open index of a shape in a temporary folder, which goes with the block."""
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="sift-compose-") as folder:
        root = Path(folder, "index")
        write_compose_index(root, shape, documents, list(prompt[0].ids), options.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SiftWarning)  # of no measured quality
            index = SiftIndex.open(root)
        yield index


def _median_ms(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return 1e3 * median(times)


def _require(found: int, expected: int) -> None:
    """A time of another amount of work would mean nothing."""
    if found != expected:
        raise UsageError(
            f"expected {expected} documents of the prompt in the index, found {found}; give "
            "another --seed"
        )
