"""SiftIndex: an opened index, checked against a model, that turns prompts into plans."""

import os
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sift_index.errors import FeatureError, FingerprintMismatchError, SiftWarning
from sift_index.fingerprints import (
    begins_with_prefix,
    layout_from,
    prefix_digest,
    served_fingerprint,
)
from sift_index.formats.fingerprint import Fingerprint, check_serve
from sift_index.formats.identity import document_key
from sift_index.formats.location import RemotePath
from sift_index.formats.masks import DocumentMasks
from sift_index.formats.reader import IndexReader
from sift_index.kernels.api import TILE, MaskLayout
from sift_index.models.loading import LoadedModel
from sift_index.models.presets import PromptTemplate
from sift_index.prompts import PromptWriter, Segment
from sift_index.runtime.compose import WORD, Composition
from sift_index.runtime.find import FoundSpan, SpanFinder
from sift_index.runtime.levels import level_notes, level_of, requested_level
from sift_index.runtime.plan import PromptPlan
from sift_index.runtime.request import from_request

UNMEASURED = (
    "this index carries no measured quality: run `sift-index tune` on your data and build with the "
    "policy it writes, or see how close it stays to dense with `sift-index eval INDEX`"
)


@dataclass
class Counters:
    """What an opened index has served so far."""

    prompts: int = 0
    hits: int = 0
    misses: int = 0
    warnings: int = 0


class SiftIndex:
    """An index in memory. `open` it, `compose` prompts, hand plans to an adapter."""

    def __init__(self, reader: IndexReader, strict: bool = False) -> None:
        self.reader = reader
        self.strict = strict
        self.counters = Counters()
        self.layout = _checked_layout(self.fingerprint)
        self._finder = SpanFinder(reader)
        self._counting = threading.Lock()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | RemotePath,
        model: Any | None = None,
        tokenizer: Any | None = None,
        strict: bool = False,
        version: int | None = None,
        preload: bool = False,
        preload_budget: int | None = None,
        mask_cache: int = 0,
    ) -> "SiftIndex":
        """Open the newest version at `path`, or `version`, and check it against `model`.

        path: a folder, or the address of a prefix in an object store, as s3://bucket/prefix, whose
        files are kept in a cache folder ($SIFT_CACHE). model: a transformers model or None to check
        later. strict: what would be a warning (other
        prefix, tokenizer, dtype, library versions) is an error. An index that carries no measured
        quality is a warning all the same, since it fits. An open index stays on its version; call
        `reader.pin()` when it has to outlive `sift-index gc`. preload: read all of it into memory,
        which processes share, if it fits preload_budget bytes (default: available memory).
        mask_cache: bytes of decoded masks to keep, where blobs are zstd. Raises IndexNotFoundError,
        IntegrityError, FeatureError, FingerprintMismatchError, StorageError, and UsageError when it
        does not fit.
        """
        index = cls(IndexReader.open(path, version=version), strict)
        if index.reader.manifest.quality is None:
            index._warn(UNMEASURED)
        if model is not None:
            index.check_model(model, tokenizer)
        if preload:
            index.reader.preload(preload_budget)
        index.reader.keep_decoded(mask_cache)
        return index

    @property
    def fingerprint(self) -> Fingerprint:
        """What the index was built for."""
        return self.reader.manifest.fingerprint

    def check_model(self, model: Any, tokenizer: Any | None = None) -> None:
        """Raise FingerprintMismatchError for another model; warn (strict: raise) for the rest."""
        found = served_fingerprint(self.fingerprint, model, tokenizer)
        for message in check_serve(self.fingerprint, found, strict=self.strict):
            self._warn(message)

    def writer(self, loaded: LoadedModel) -> PromptWriter:
        """Return a prompt writer with the texts this index was built with."""
        return self.writer_for(loaded.tokenizer, loaded.prompt.query)

    def writer_for(self, tokenizer: Any, query: str) -> PromptWriter:
        """Return a prompt writer for a tokenizer; query: text with {question}, behind documents."""
        build = self.fingerprint.build
        texts = {name: build[name] for name in ("prefix", "span_prefix", "span_suffix")}
        return PromptWriter(tokenizer, PromptTemplate(**texts, query=query))

    def lookup(self, ids: Sequence[int]) -> DocumentMasks | None:
        """Return the masks of the document with exactly these token ids, or None."""
        return self.reader.lookup(document_key(ids))

    def compose(
        self,
        segments: Iterable[Segment | Sequence[int]],
        level: int = 1,
        quality: str | int | None = None,
    ) -> PromptPlan:
        """Turn a prompt into a plan: token ids in, spans found by key, everything else dense glue.

        level: which of the index's nested thresholds to use (1 = densest). quality: the same in
        words, `best`, `balanced` or `fast`; all are one where the index has one level. Never wrong,
        only slower, when a document is not indexed. Raises UsageError for a level the index lacks,
        FingerprintMismatchError for another prefix when strict.
        """
        return self._compose(segments, level, quality)

    def _compose(
        self,
        segments: Iterable[Segment | Sequence[int]],
        level: int,
        quality: str | int | None,
        raw: bool = False,
    ) -> PromptPlan:
        """Compose; raw: nobody knows where the prefix ends, since glue was found, not declared."""
        level = requested_level(level, quality, self.layout.levels)
        longest = int(self.fingerprint.build["longest"])
        parts = Composition(self.reader.lookup, longest, self.reader.document_keys)
        for segment in segments:
            parts.add(segment)
        warned = [*self._prefix_warnings(parts, raw), *level_notes(quality, self.layout.levels)]
        plan = parts.plan(self.layout, self.fingerprint, level, warned)
        self._count(plan)
        return plan

    def find_spans(self, ids: Sequence[int]) -> list[FoundSpan]:
        """Return the indexed documents in a raw prompt, in order, none overlapping another.

        For prompts whose parts nobody declares, as a server gets them: anchors at every offset,
        checked by full key; of documents that overlap the longest counts. Those of fewer than 16
        tokens are not found. About 1 us a token. Raises UsageError for ids that are none.
        """
        return self._finder.find(ids)

    def compose_ids(
        self, ids: Sequence[int], level: int = 1, quality: str | int | None = None
    ) -> PromptPlan:
        """Turn a raw prompt into a plan: `find_spans`, then `compose`; the rest is glue."""
        segments, cursor = [], 0
        for span in self.find_spans(ids):
            segments.append(Segment(ids[cursor : span.start], glue=True))
            segments.append(Segment(ids[span.start : span.stop]))
            cursor = span.stop
        segments.append(Segment(ids[cursor:], glue=True))
        parts = [part for part in segments if len(part.ids)]
        return self._compose(parts, level, quality, raw=True)

    def from_request(
        self, request: Mapping[str, Any], quality: str | int | None = None
    ) -> PromptPlan:
        """Return the plan that another process composed and sent (`runtime.request.to_request`).

        quality: in place of the level it was composed at. Documents this index lacks become glue.
        Raises UsageError for values that are no request,
        FingerprintMismatchError for one of another index.
        """
        plan = from_request(request, self.reader.lookup, self.layout, self.fingerprint)
        level_of(plan.sparse.level, self.layout.levels)  # raises for one it lacks
        plan = plan if quality is None else plan.at(quality)
        self._count(plan)
        return plan

    def _prefix_warnings(self, parts: Composition, raw: bool) -> list[str]:
        """Compare what stands before the first document with the prefix of the build."""
        ends = _prefix_ends(parts)
        expected = self.fingerprint.advisory["prefix"]
        ids = np.frombuffer(bytes(parts.data[: WORD * max(ends, default=0)]), "<u4")
        if not ends or any(prefix_digest(ids[:end]) == expected for end in ends):
            return []
        if raw and begins_with_prefix(ids, expected):
            return []  # documents that are not indexed, or too short to be found, may follow it
        message = (
            "the tokens before the first document are not the prefix the index was built behind; "
            "masks may fit less well: use the index's own prefix or rebuild with this one"
        )
        if self.strict:
            raise FingerprintMismatchError(f"strict: {message}")
        self._warn(message, callers=4)
        return [message]

    def _count(self, plan: PromptPlan) -> None:
        hits, misses = plan.hits, plan.misses
        with self._counting:
            self.counters.prompts += 1
            self.counters.hits += hits
            self.counters.misses += misses

    def _warn(self, message: str, callers: int = 2) -> None:
        """Count and show a warning at the line of whoever called this, so many calls ago."""
        with self._counting:
            self.counters.warnings += 1
        warnings.warn(message, SiftWarning, stacklevel=callers + 1)


def _prefix_ends(parts: Composition) -> list[int]:
    """Return where the prefix may end: at the first span, or at the first document before it.

    Nothing for a prompt without spans, which no mask can fit badly.
    """
    if not parts.spans:
        return []
    missed = [o.start for o in parts.outcomes if o.reason in ("not_indexed", "changed")]
    alone = [0] if parts.outcomes[0].reason == "no_prefix" else []  # an index without a prefix
    return sorted({parts.spans[0].start, *missed[:1], *alone})


def _checked_layout(fingerprint: Fingerprint) -> MaskLayout:
    layout = layout_from(fingerprint.serve)
    tile = fingerprint.serve["layout"].get("tile")
    if tile != TILE:
        raise FeatureError(f"expected an index with tiles of {TILE} rows, found {tile}")
    return layout
