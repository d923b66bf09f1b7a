"""The worker: one model, units in, committed packs out. Only receipts and failures travel back.

A plain class; the driver turns it into a Ray actor, tests run it as it is.
"""

import socket
import time
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from sift_index.errors import DocumentError
from sift_index.fingerprints import build_fingerprint
from sift_index.formats.failures import FailedDocument
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.identity import document_key
from sift_index.formats.masks import DocumentMasks
from sift_index.formats.packs import write_pack
from sift_index.formats.receipts import Receipt, commit, reuse_receipt
from sift_index.formats.store import IndexPaths
from sift_index.models.loading import LoadedModel, load_model
from sift_index.models.quiet import quiet_transformers
from sift_index.pipelines.config import CODECS, BuildConfig
from sift_index.pipelines.corpus import CorpusReader
from sift_index.pipelines.documents import DocumentRules, Piece, read_pieces
from sift_index.pipelines.planner import Unit, unit_id
from sift_index.prompts import PromptWriter
from sift_index.selection.extractor import Extractor


@dataclass(frozen=True)
class UnitOutcome:
    """What came of a unit: its receipt, None when every document failed, and the failures."""

    receipt: Receipt | None
    failed: tuple[FailedDocument, ...] = ()


class BuildWorker:
    """Holds a model and turns units into packs and receipts.

    The model is loaded by the first call, not by the constructor, so that a failure to load
    reaches the driver as the error it is.
    """

    def __init__(self, config: BuildConfig, reader: CorpusReader, rules: DocumentRules) -> None:
        self._config = config
        self._reader = reader
        self._rules = rules
        self._paths = IndexPaths(config.output)

    def fingerprint(self) -> Fingerprint:
        """Load the model and say what this worker would build: all workers must agree."""
        return self._fingerprint

    def run_unit(self, unit: Unit) -> UnitOutcome:
        """Index a unit and commit it; the receipt is the one on disk, an earlier one if it lost.

        What fails is left out and the rest committed as the unit it makes, under that unit's id:
        a receipt always proves all keys of its id, and the next build tries the failed ones again.
        """
        if earlier := reuse_receipt(self._paths, unit.id):
            return UnitOutcome(earlier)
        started = time.monotonic()
        rows: list[DocumentMasks] = []
        done: list[Piece] = []
        failed: list[FailedDocument] = []
        for piece in unit.pieces:
            try:
                rows.append(self._extractor.extract(self._ids(piece)))
                done.append(piece)
            except DocumentError as problem:
                failed.append(FailedDocument(self._reader.source(piece.location), str(problem)))
        if not rows:
            return UnitOutcome(None, tuple(failed))
        name = unit_id(done, self._fingerprint.build_digest) if failed else unit.id
        receipt = self._commit(name, rows, failed, time.monotonic() - started)
        return UnitOutcome(receipt, tuple(failed))

    @cached_property
    def _loaded(self) -> LoadedModel:
        torch.set_num_threads(self._config.threads)
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
        seconds: float,
    ) -> Receipt:
        digest = self._fingerprint.build_digest
        pack = write_pack(self._paths, unit, digest, rows, CODECS[self._config.codec])
        receipt = Receipt(
            unit=unit,
            build_digest=digest,
            pack=pack,
            keys=tuple(sorted(row.key.hex() for row in rows)),
            tokens=sum(row.tokens for row in rows),
            failed=tuple(failed),
            stats={
                "seconds": round(seconds, 3),
                "host": socket.gethostname(),
                "device": str(self._loaded.device),
            },
        )
        return commit(self._paths, receipt)

    def _ids(self, piece: Piece) -> list[int]:
        _, pieces = read_pieces(self._reader, piece.location, self._rules)
        ids = list(pieces[piece.number]) if piece.number < len(pieces) else []
        if not ids or document_key(ids) != piece.key:
            raise DocumentError(
                "the document changed while the build ran: its token ids are not the planned "
                "ones; run the same command again to index it as it is now"
            )
        return ids
