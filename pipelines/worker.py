"""The worker: one model, units in, committed packs out. Only receipts and failures travel back.

A plain class; the driver turns it into a Ray actor, tests run it as it is. The actor works on two
units at once in two threads that take turns on the device: while one computes, the other reads and
tokenises its documents, or compresses and writes its pack.
"""

import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import islice

import ray
import torch

from sift_index.fingerprints import build_fingerprint
from sift_index.formats.failures import FailedDocument
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.masks import DocumentMasks
from sift_index.formats.packs import write_pack
from sift_index.formats.receipts import Receipt, commit, reuse_receipt
from sift_index.formats.store import IndexPaths
from sift_index.models.loading import LoadedModel, load_model
from sift_index.models.quiet import quiet_transformers
from sift_index.pipelines.config import CODECS, BuildConfig
from sift_index.pipelines.corpus import CorpusReader
from sift_index.pipelines.documents import DocumentRules, Piece, read_pieces
from sift_index.pipelines.measurement import Sample, measure
from sift_index.pipelines.metrics import worker_metrics
from sift_index.pipelines.planner import Unit, unit_id
from sift_index.prompts import PromptWriter
from sift_index.selection.batches import launch_batches
from sift_index.selection.extraction import Extraction
from sift_index.selection.extractor import Extractor

# Of a Ray node's id; `ray list nodes` shows them all.
NODE_DIGITS = 12
TOO_BIG = (
    "{} tokens do not fit in the memory of the device beside the model; split documents at fewer "
    "tokens with --max-tokens"
)


@dataclass(frozen=True)
class UnitOutcome:
    """What came of a unit: its receipt, None when every document failed, and the failures."""

    receipt: Receipt | None
    failed: tuple[FailedDocument, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where a worker runs, for messages and receipts; `node` is empty outside Ray."""

    host: str
    node: str
    pid: int


@dataclass(frozen=True)
class Taken:
    """Seconds that parts of a unit took; `extracted` from the first launch to the last result."""

    read: float
    extracted: float


class BuildWorker:
    """Holds a model and turns units into packs and receipts.

    The model is loaded by the first call, not by the constructor, so that a failure to load
    reaches the driver as the error it is.
    """

    def __init__(self, config: BuildConfig, reader: CorpusReader, rules: DocumentRules) -> None:
        # The CPUs that it has not claimed are busy with other workers and tasks.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._config = config
        self._reader = reader
        self._rules = rules
        self._paths = IndexPaths(config.output)
        self._device = threading.Lock()

    def place(self) -> Place:
        """Say where this worker runs, at once: it has a place, and loads when asked to."""
        return _place()

    def fingerprint(self) -> Fingerprint:
        """Load the model and say what this worker would build: all workers must agree."""
        with self._device:
            torch.set_num_threads(self._config.threads)
            return self._fingerprint

    def run_unit(self, unit: Unit) -> UnitOutcome:
        """Index a unit and commit it; the receipt is the one on disk, an earlier one if it lost.

        What fails is left out and the rest committed as the unit it makes, under that unit's id:
        a receipt always proves all keys of its id, and the next build tries the failed ones again.
        """
        if earlier := reuse_receipt(self._paths, unit.id):
            return UnitOutcome(earlier)
        started = time.monotonic()
        done, documents, failed = self._read(unit)
        read, rows = time.monotonic() - started, list[DocumentMasks]()
        launched, batches = self._launch(done, documents)
        for pieces, extraction in batches:
            if extraction is not None:
                rows += extraction.result()
                continue
            done = [piece for piece in done if piece not in pieces]
            failed += [self._failure(piece, TOO_BIG.format(piece.tokens)) for piece in pieces]
        if not rows:
            return self._counted(UnitOutcome(None, tuple(failed)))
        name = unit_id(done, self._fingerprint.build_digest) if failed else unit.id
        taken = Taken(read, time.monotonic() - launched)
        receipt = self._commit(name, rows, failed, taken)
        return self._counted(UnitOutcome(receipt, tuple(failed)), taken.extracted)

    def _counted(self, outcome: UnitOutcome, seconds: float = 0.0) -> UnitOutcome:
        tokens = outcome.receipt.tokens if outcome.receipt else 0
        device = _device_name(self._loaded.device)
        worker_metrics().unit(tokens, seconds, len(outcome.failed), device)
        return outcome

    def _read(self, unit: Unit) -> tuple[list[Piece], list[Sequence[int]], list[FailedDocument]]:
        """Return the pieces that can still be read, with their token ids, and what cannot."""
        done: list[Piece] = []
        documents: list[Sequence[int]] = []
        failed: list[FailedDocument] = []
        pieces = list(unit.pieces)
        for piece, ids in zip(pieces, read_pieces(self._reader, pieces, self._rules), strict=True):
            if isinstance(ids, FailedDocument):
                failed.append(ids)
            else:
                done.append(piece)
                documents.append(ids)
        return done, documents, failed

    def _launch(
        self, pieces: Sequence[Piece], documents: Sequence[Sequence[int]]
    ) -> tuple[float, list[tuple[Sequence[Piece], Extraction | None]]]:
        """Start all batches of a unit; on a GPU they are done when their results are asked for.

        Returns when the first was started, and the batches.
        """
        with self._device:
            started = time.monotonic()
            # A setting of the calling thread, and results depend on it.
            torch.set_num_threads(self._config.threads)
            launched = list(launch_batches(self._extractor, documents, self._config.batch_tokens))
        left = iter(pieces)
        found: list[tuple[Sequence[Piece], Extraction | None]]
        found = [(list(islice(left, len(batch))), extraction) for batch, extraction in launched]
        return started, found

    def _failure(self, piece: Piece, reason: str) -> FailedDocument:
        return FailedDocument(self._reader.source(piece.location), reason)

    def measure(self, samples: Sequence[Sequence[Piece]]) -> list[Sample]:
        """Extract samples of documents for the time they take; nothing is committed.

        One document runs in front, for what happens only once. Documents that fail do not count.
        """
        codec = CODECS[self._config.codec]
        found = [
            measure(partial(self._sampled, pieces), codec)
            for pieces in [*_first(samples), *samples]
        ]
        return [sample for sample in found[1:] if sample.tokens]

    def _sampled(self, pieces: Sequence[Piece]) -> list[DocumentMasks]:
        done, documents, _ = self._read(Unit("", tuple(pieces)))
        _, batches = self._launch(done, documents)
        return [row for _, found in batches if found is not None for row in found.result()]

    @cached_property
    def _loaded(self) -> LoadedModel:
        quiet_transformers()
        loaded = load_model(self._config.model, self._config.dtype, self._config.device)
        return replace(loaded, prompt=self._rules.template)

    @cached_property
    def _extractor(self) -> Extractor:
        return Extractor(self._loaded, self._config.policy, self._prefix)

    @cached_property
    def _fingerprint(self) -> Fingerprint:
        return build_fingerprint(
            self._loaded,
            self._config.policy,
            self._extractor.layout,
            self._prefix,
            self._rules.longest,
        )

    @property
    def _prefix(self) -> list[int]:
        return PromptWriter(self._loaded.tokenizer, self._rules.template).prefix()

    def _commit(
        self,
        unit: str,
        rows: list[DocumentMasks],
        failed: list[FailedDocument],
        taken: Taken,
    ) -> Receipt:
        digest, started = self._fingerprint.build_digest, time.monotonic()
        pack = write_pack(self._paths, unit, digest, rows, CODECS[self._config.codec])
        receipt = Receipt(
            unit=unit,
            build_digest=digest,
            pack=pack,
            keys=tuple(sorted(row.key.hex() for row in rows)),
            tokens=sum(row.tokens for row in rows),
            failed=tuple(failed),
            stats={
                "seconds": round(taken.extracted, 3),
                "read_seconds": round(taken.read, 3),
                "commit_seconds": round(time.monotonic() - started, 3),
                "device": _device_name(self._loaded.device),
                **asdict(_place()),
            },
        )
        return commit(self._paths, receipt)


def _place() -> Place:
    node = ray.get_runtime_context().get_node_id()[:NODE_DIGITS] if ray.is_initialized() else ""
    return Place(socket.gethostname(), node, os.getpid())


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _first(samples: Sequence[Sequence[Piece]]) -> list[Sequence[Piece]]:
    return [sample[:1] for sample in samples[:1]]
