"""One measurement of `sift-index bench plan` in a process of its own, for its memory.

python -m sift_index.pipelines.bench.plan_child KIND OPTIONS (JSON): prints one line of JSON.
"""

import io
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.receipts import receipt_keys
from sift_index.formats.store import IndexPaths
from sift_index.models.loading import load_tokenizer
from sift_index.pipelines.bench.plan_driver import drive
from sift_index.pipelines.bench.plan_inputs import batch_of, scanned_batches
from sift_index.pipelines.cataloguing import CatalogueBuilder
from sift_index.pipelines.changes import corpus_changes
from sift_index.pipelines.cluster import ray_session
from sift_index.pipelines.corpus import CorpusReader, open_corpus
from sift_index.pipelines.corpus.files import FolderReader
from sift_index.pipelines.documents import TEXTS, DocumentRules, scan_batch
from sift_index.pipelines.progress import LogProgress
from sift_index.pipelines.publishing import failed_documents, publish_build
from sift_index.pipelines.resume import Held, read_held, units_left
from sift_index.pipelines.scanned import scanned_batch
from sift_index.pipelines.scanning import scan_corpus

DIGEST = "0" * 32
SAMPLE = 5_000  # documents
Found = dict[str, float]


@dataclass
class Watch:
    """Seconds of laps by name, added up in `found`."""

    found: Found

    def __post_init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self, name: str | None = None) -> None:
        """End a lap; one without a name counts for nothing."""
        now = time.perf_counter()
        if name is not None:
            self.found[name] = self.found.get(name, 0.0) + now - self._last
        self._last = now


def plan_lengths(documents: int, unit_tokens: int, seed: int) -> Found:
    """Plan documents whose lengths are given, to the last unit handed out."""
    found: Found = {}
    watch, builder = Watch(found), CatalogueBuilder()
    for batch in scanned_batches(documents, seed):
        watch.lap()
        builder.add(batch)
        watch.lap("take_in_s")
    catalogue = builder.finish()
    plan = units_left(catalogue, Held(None, ()), unit_tokens, DIGEST)
    watch.lap("plan_s")
    found |= {"units": len(plan), "keys": plan.keys, "tokens": plan.tokens}
    for _ in plan:
        pass
    watch.lap("hand_out_s")
    return {**found, "seconds": found["take_in_s"] + found["plan_s"] + found["hand_out_s"]}


def plan_texts(corpus: str, model: str, unit_tokens: int) -> Found:
    """Read, tokenise and plan a corpus as a build does, on all CPUs of this machine."""
    found: Found = {}
    _, template = load_tokenizer(model)
    rules = DocumentRules(model, template, 1 << 30, "split")
    with ray_session("local"):
        watch, cpu = Watch(found), time.process_time()
        reader = open_corpus(Path(corpus))
        catalogue = scan_corpus(reader, rules, LogProgress(io.StringIO()))
        watch.lap("scan_s")
        found["driver_cpu_share"] = (time.process_time() - cpu) / found["scan_s"]
        plan = units_left(catalogue, Held(None, ()), unit_tokens, DIGEST)
        watch.lap("plan_s")
    found |= {"units": len(plan), "keys": plan.keys, "tokens": int(catalogue.tokens.sum())}
    found["tokens_per_cpu_second"] = _rate_of_a_core(reader, rules)
    return {**found, "seconds": found["scan_s"] + found["plan_s"]}


def _rate_of_a_core(reader: CorpusReader, rules: DocumentRules) -> float:
    """Return how many tokens a second of one CPU reads and tokenises, whatever else runs."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    locations = list(islice(reader.locations(), SAMPLE))
    scanned_batch(scan_batch(reader, locations[:TEXTS], rules))  # loads the tokenizer
    cpu = time.process_time()
    tokens = int(scanned_batch(scan_batch(reader, locations, rules)).tokens.sum())
    return tokens / (time.process_time() - cpu)


def publish_units(root: str, tokens: int) -> Found:
    """Publish units that are committed, then find that a second build has nothing to publish."""
    found: Found = {}
    paths, watch = IndexPaths(Path(root)), Watch(found)
    built = Fingerprint(**json.loads(Path(root, "fingerprint.json").read_text()))
    held = read_held(paths, built)
    watch.lap("receipts_s")
    keys = receipt_keys(held.receipts)
    builder = CatalogueBuilder()
    builder.add(batch_of(np.arange(len(keys)), keys, np.full(len(keys), tokens, np.uint32)))
    catalogue = builder.finish()
    watch.lap("catalogue_s")
    publish_build(paths, built, held, held.receipts, catalogue)
    watch.lap("publish_s")
    after = read_held(paths, built)
    changes = corpus_changes(catalogue, after)
    left = units_left(catalogue, after, 1 << 20, built.build_digest)
    failed = failed_documents(FolderReader(Path(root), {}), catalogue, [], after)
    watch.lap("unchanged_s")
    if len(left) or failed or changes.unchanged != len(keys):
        raise SystemExit("expected all documents in the version, found that some are not")
    return {**found, "keys": len(keys), "seconds": found["publish_s"]}


KINDS: dict[str, Callable[..., Found]] = {
    "lengths": plan_lengths,
    "texts": plan_texts,
    "publish": publish_units,
    "driver": drive,
}


def main() -> None:
    """Measure as the arguments say and print it, with CPU time and peak memory of this process."""
    options: dict[str, Any] = json.loads(sys.argv[2])
    cpu = time.process_time()
    found = KINDS[sys.argv[1]](**options)
    found["cpu_s"] = time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({**found, "peak_bytes": peak}), flush=True)


if __name__ == "__main__":
    main()
