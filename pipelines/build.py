"""The driver: a build from corpus to published version, safe to kill and run again.

Scan and tokenise, ask a worker what it would build, subtract what is held, cut units, run them,
publish. Every step before publishing only adds files that the same command finds again.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sift_index.errors import CommitConflictError, UsageError
from sift_index.formats.failures import FailedDocument
from sift_index.formats.location import anchored
from sift_index.formats.manifest import versions
from sift_index.formats.presence import is_folder, is_there, resolved
from sift_index.formats.removal import Removal
from sift_index.formats.store import IndexPaths, file_names
from sift_index.models.digests import tokenizer_digest
from sift_index.models.geometry import geometry_of
from sift_index.models.loading import load_config, load_tokenizer, model_label
from sift_index.models.presets import preset_names
from sift_index.pipelines.catalogue import Catalogue
from sift_index.pipelines.cluster import ray_session, resolve_build_device
from sift_index.pipelines.config import BuildConfig
from sift_index.pipelines.corpus import CorpusReader, ignored_files, open_corpus
from sift_index.pipelines.corpus.base import UnusableCorpusError
from sift_index.pipelines.crew import Crew
from sift_index.pipelines.documents import DocumentRules
from sift_index.pipelines.events import BuildEvent
from sift_index.pipelines.failures import (
    FailureBudget,
    TooManyFailuresError,
    examples,
    record_all,
    recorded,
)
from sift_index.pipelines.plansize import require_bearable
from sift_index.pipelines.probes import with_probes
from sift_index.pipelines.progress import BuildProgress, build_progress
from sift_index.pipelines.pruning import removal_for, require_prunable
from sift_index.pipelines.publishing import (
    failed_documents,
    publish_build,
    record_failures,
    scan_failures,
)
from sift_index.pipelines.resume import Held, read_held, units_left
from sift_index.pipelines.runner import RunResult
from sift_index.pipelines.scanning import scan_corpus
from sift_index.pipelines.state import StateWriter, about
from sift_index.pipelines.stopping import signals_stop, stops_explained
from sift_index.pipelines.summary import BuildSummary, summarise
from sift_index.prompts import PromptWriter
from sift_index.selection.policy import ProbePolicy
from sift_index.selection.quality import quality_for

# Publications by others that a build follows before it gives up; it takes seconds, they minutes.
ROUNDS = 5
# Documents that cannot be read are written down before any work, for who asks meanwhile, and after
# a build that died; so many of them, for workers wait. All are at the end.
EARLY_RECORDS = 1000
NOT_ALONE = (
    "another build of this index runs: texts that no document has may be its own and stay; a later "
    "--prune takes what is left of them"
)


def run_build(config: BuildConfig, progress: BuildProgress | None = None) -> BuildSummary:
    """Build or extend the index at `config.output`; running it again resumes.

    Raises UsageError, CorpusError, ModelError for what is wrong before work starts,
    FingerprintMismatchError when the output holds another build, BuildError when a build cannot
    go on, BuildInterrupted (a KeyboardInterrupt) for Ctrl-C and SIGTERM. A bad document does not
    raise unless there are more than `max_failures`: it is in the summary and under failed/.
    """
    config = anchored_config(config)
    _require_apart(config)
    rules = document_rules(config)
    reader = corpus_reader(config)
    paths = IndexPaths(config.output)
    with ray_session(config.address), signals_stop(), progress or build_progress() as shown:
        config = replace(config, device=resolve_build_device(config.device, config.model))
        with StateWriter(paths, about(config), shown) as state, stops_explained(paths):
            return _build(config, reader, rules, state)


def _build(
    config: BuildConfig, reader: CorpusReader, rules: DocumentRules, progress: StateWriter
) -> BuildSummary:
    started = time.monotonic()
    paths, failures = IndexPaths(config.output), FailureBudget(config.max_failures)
    catalogue = scan_corpus(reader, rules, progress)
    if config.prune:
        require_prunable(catalogue)
    unreadable = scan_failures(reader, catalogue)
    with _written_to_new(paths, unreadable, progress):
        failures.add(unreadable)
        _require_any(catalogue, unreadable)
    config = with_probes(config, reader, rules, progress)
    progress.note(f"loading {config.model} on {config.device}")
    with Crew(config, reader, rules) as crew:
        fingerprint = crew.fingerprint
        held = read_held(paths, fingerprint)
        paths.create()  # not earlier: a build that is refused leaves no trace
        progress.accept(len(unreadable))
        record_all(paths, unreadable[:EARLY_RECORDS])
        with recorded(paths, failures):
            ending = _until_published(config, crew, held, catalogue, progress, failures)
    current = read_held(paths, fingerprint)
    failed = failed_documents(reader, catalogue, ending.result.failed, current)
    record_failures(paths, reader, failed, config.prune and progress.alone())
    return summarise(
        catalogue=catalogue,
        before=held,
        after=current,
        result=ending.result,
        failed=failed,
        published=ending.published,
        ignored=ignored_files(reader),
        workers=crew.size,
        seconds=time.monotonic() - started,
        removal=ending.removal,
    )


def _require_apart(config: BuildConfig) -> None:
    """Raise UsageError for an index that would lie among the texts of its corpus."""
    output = config.output
    if not isinstance(output, Path) or not is_there(config.corpus):
        return
    if resolved(config.corpus) == resolved(output):
        raise UsageError(
            f"expected another folder for the index than that of the corpus, found {config.output} "
            "for both; give another --index"
        )


def _require_any(catalogue: Catalogue, unreadable: Sequence[FailedDocument]) -> None:
    """Raise UnusableCorpusError when nothing can be indexed and something cannot be read."""
    if unreadable and not len(catalogue.distinct_keys):
        raise UnusableCorpusError(
            f"expected a document that can be indexed, found {len(unreadable)} that cannot, such "
            f"as {examples(unreadable)}; correct the corpus, or name the field of its texts "
            "(--text-field)"
        )


@contextmanager
def _written_to_new(
    paths: IndexPaths, unreadable: Sequence[FailedDocument], progress: StateWriter
) -> Iterator[None]:
    """Where the corpus alone stops a build, before a model is loaded, write down why.

    Nothing is written to an index that has anything: whether it is of this model and policy is not
    known yet.
    """
    try:
        yield
    except (TooManyFailuresError, UnusableCorpusError):
        if not versions(paths) and not file_names(paths.commits, ".json"):
            paths.create()
            progress.accept(len(unreadable))
            record_all(paths, unreadable)
        raise


@dataclass(frozen=True)
class _Ending:
    """What a build came to; `published` a version or found nothing new, `removal` is what left."""

    result: RunResult
    published: bool
    removal: Removal | None


def _until_published(
    config: BuildConfig,
    crew: Crew,
    held: Held,
    catalogue: Catalogue,
    progress: StateWriter,
    failures: FailureBudget,
) -> _Ending:
    """Run the units that are left and publish; again on top of another writer's version.

    A second round finds its own units committed, and computes only what that writer deleted. What
    others added since the start is not pruned. Raises CommitConflictError when others were faster
    every time.
    """
    paths, result, first = IndexPaths(config.output), RunResult(), held
    digest = crew.fingerprint.build_digest
    quality = quality_for(config.quality, model_label(config.model))
    rounds = ROUNDS
    while True:
        units = units_left(catalogue, held, config.unit_tokens, digest)
        require_bearable(units, held)
        if len(units):
            paths.require_writable()
        found = crew.run(units, progress, failures)
        result.add(found)
        receipts = [*held.receipts, *found.receipts]
        removal = None
        if config.prune:
            alone = progress.alone()  # asked now: another build may have begun since the start
            removal = removal_for(catalogue, first, alone)
            if not alone:
                progress.note(NOT_ALONE)
        try:
            manifest = publish_build(
                paths, crew.fingerprint, held, receipts, catalogue, quality, removal
            )
        except CommitConflictError:
            rounds -= 1
            if not rounds:
                raise
            news = "another writer published a version; building on top of it"
            progress.note(BuildEvent("conflict", reason=news))
            held = read_held(paths, crew.fingerprint)
        else:
            return _Ending(result, manifest is not None, removal)


def document_rules(config: BuildConfig) -> DocumentRules:
    """Return how texts become pieces, from the model's context and prompt texts.

    Raises UnsupportedModelError before anything is read.
    """
    context = geometry_of(load_config(config.model)).context
    tokenizer, template = load_tokenizer(config.model)
    texts = {
        name: value
        for name in ("prefix", "span_prefix", "span_suffix")
        if (value := getattr(config, name)) is not None
    }
    template = replace(template, **texts)
    prefix = PromptWriter(tokenizer, template).prefix()
    # The paper's rule runs documents alone; the probe rule needs room for the prefix.
    room = context - (len(prefix) if isinstance(config.policy, ProbePolicy) else 0)
    if room < 1:
        raise UsageError(
            f"expected a prefix shorter than the model's context of {context} tokens, found "
            f"{len(prefix)}; shorten it"
        )
    longest = min(room, config.max_tokens or room)
    digest = tokenizer_digest(tokenizer)
    return DocumentRules(config.model, template, longest, config.long, digest)


def corpus_reader(config: BuildConfig) -> CorpusReader:
    """Return the reader of the corpus; an index inside it holds no documents of it."""
    index = config.output if isinstance(config.output, Path) else None
    return open_corpus(config.corpus, config.text_field, config.id_field, index)


def anchored_config(config: BuildConfig) -> BuildConfig:
    """Make paths absolute: workers have another current folder than the driver."""
    local = config.model not in preset_names() and is_folder(config.model)
    model = os.path.abspath(config.model) if local else config.model
    return replace(config, output=anchored(config.output), model=model)
