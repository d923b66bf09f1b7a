"""Scanning: read and tokenise a corpus, in this process when it is small, else as Ray tasks.

Places are listed while tasks read the ones before, and a bounded number of tasks is ahead of the
catalogue, which takes in their arrays in corpus order.
"""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice

import ray
from ray import cloudpickle
from ray.exceptions import RayError, RayTaskError

from sift_index.errors import BuildError, CorpusError
from sift_index.pipelines.catalogue import Catalogue
from sift_index.pipelines.cataloguing import CatalogueBuilder
from sift_index.pipelines.corpus import CorpusReader, Location
from sift_index.pipelines.documents import DocumentRules, scan_batch
from sift_index.pipelines.progress import BuildProgress
from sift_index.pipelines.scanned import ScannedBatch, scanned_batch

# Places in the first task and in the largest: a small corpus is spread over all CPUs, a large one
# costs the driver little.
SCAN_BATCH, LARGEST_BATCH = 256, 4096
# Tasks wait for a CPU as long as it takes; after so long without a result a person is told.
SLOW_SECONDS = 60.0
Batches = Iterator[list[Location]]


def scan_corpus(reader: CorpusReader, rules: DocumentRules, progress: BuildProgress) -> Catalogue:
    """Read the whole corpus into a catalogue, in corpus order; CorpusError when it is empty."""
    builder = CatalogueBuilder()
    batches = _batches(reader)
    first, second = next(batches, []), next(batches, None)
    if second is None:
        builder.add(scanned_batch(scan_batch(reader, first, rules)))
    else:
        for found in _scan_remotely(reader, rules, _joined(first, second, batches), progress):
            builder.add(found)
    if not builder.read:
        raise CorpusError("expected documents in the corpus, found none; check the path")
    catalogue = builder.finish()
    progress.note(
        f"{catalogue.read} documents read, {len(catalogue.distinct)} distinct texts to index, "
        f"{len(catalogue.failed) + len(catalogue.clashes)} documents cannot be indexed"
    )
    return catalogue


def _scan_remotely(
    reader: CorpusReader, rules: DocumentRules, batches: Batches, progress: BuildProgress
) -> Iterator[ScannedBatch]:
    """Yield results in order, a bounded number of tasks ahead."""
    task, shared = ray.remote(_scan_task), ray.put(cloudpickle.dumps((reader, rules)))
    window = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
    waiting: deque[ray.ObjectRef[ScannedBatch]] = deque()
    for batch in batches:
        if len(waiting) >= window:
            yield _result(waiting.popleft(), progress)
        waiting.append(task.remote(shared, batch))
    while waiting:
        yield _result(waiting.popleft(), progress)


def _scan_task(shared: bytes, locations: Sequence[Location]) -> ScannedBatch:
    # A task has one CPU; the others are busy with other tasks.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    reader, rules = _unpacked(shared)
    return scanned_batch(scan_batch(reader, locations, rules))


@lru_cache(maxsize=1)
def _unpacked(shared: bytes) -> tuple[CorpusReader, DocumentRules]:
    """Return reader and rules, the same for all tasks of a process: a reader keeps open files.

    One that counts lines anew in every task would read a large file thousands of times.
    """
    found: tuple[CorpusReader, DocumentRules] = cloudpickle.loads(shared)
    return found


def _result(reference: "ray.ObjectRef[ScannedBatch]", progress: BuildProgress) -> ScannedBatch:
    """Return what a task found; its errors come out as what they are."""
    try:
        if not ray.wait([reference], timeout=SLOW_SECONDS)[0]:
            progress.note(
                f"still reading the corpus: nothing new came for {SLOW_SECONDS:.0f} s; does the "
                "cluster have a CPU that is free (`ray status`)?"
            )
        found: ScannedBatch = ray.get(reference)
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
    locations, size = reader.locations(), SCAN_BATCH
    while batch := list(islice(locations, size)):
        yield batch
        size = min(2 * size, LARGEST_BATCH)
