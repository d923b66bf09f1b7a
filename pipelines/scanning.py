"""Scanning: read and tokenise a corpus, in this process when it is small, else as Ray tasks."""

from collections import deque
from collections.abc import Iterator
from itertools import islice

import ray
from ray.exceptions import RayError, RayTaskError

from sift_index.errors import BuildError, CorpusError
from sift_index.pipelines.corpus import CorpusReader, Location
from sift_index.pipelines.documents import DocumentRules, Scanned, scan_batch
from sift_index.pipelines.planner import Catalogue
from sift_index.pipelines.progress import BuildProgress

SCAN_BATCH = 256
Batches = Iterator[list[Location]]


def scan_corpus(reader: CorpusReader, rules: DocumentRules, progress: BuildProgress) -> Catalogue:
    """Read the whole corpus into a catalogue, in corpus order; CorpusError when it is empty."""
    catalogue = Catalogue()
    batches = _batches(reader)
    first, second = next(batches, []), next(batches, None)
    if second is None:
        catalogue.add(scan_batch(reader, first, rules))
    else:
        for found in _scan_remotely(reader, rules, _joined(first, second, batches)):
            catalogue.add(found)
    if not catalogue.read:
        raise CorpusError("expected documents in the corpus, found none; check the path")
    progress.note(
        f"{catalogue.read} documents read, {len(catalogue.pieces)} distinct texts to index, "
        f"{len(catalogue.failed) + len(catalogue.clashes)} documents cannot be"
    )
    return catalogue


def _scan_remotely(
    reader: CorpusReader, rules: DocumentRules, batches: Batches
) -> Iterator[list[Scanned]]:
    """Yield results in order, a bounded number of tasks ahead."""
    task = ray.remote(scan_batch)
    window = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
    waiting: deque[ray.ObjectRef[list[Scanned]]] = deque()
    for batch in batches:
        if len(waiting) >= window:
            yield _result(waiting.popleft())
        waiting.append(task.remote(reader, batch, rules))
    while waiting:
        yield _result(waiting.popleft())


def _result(reference: "ray.ObjectRef[list[Scanned]]") -> list[Scanned]:
    """Return what a task found; its errors come out as what they are."""
    try:
        found: list[Scanned] = ray.get(reference)
    except RayTaskError as error:
        raise error.cause from None
    except RayError as death:
        raise BuildError(
            f"a process that reads the corpus died: {death}; is there enough memory? Nothing was "
            "written; run the same command again"
        ) from death
    return found


def _joined(first: list[Location], second: list[Location], rest: Batches) -> Batches:
    yield first
    yield second
    yield from rest


def _batches(reader: CorpusReader) -> Batches:
    locations = reader.locations()
    while batch := list(islice(locations, SCAN_BATCH)):
        yield batch
