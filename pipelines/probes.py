"""Probe texts of a build with `probe_source: corpus`: sampled once, kept beside the index.

What an index holds was measured with one set of texts. They are written when it is begun and used
as they are from then on: a corpus that grows or changes keeps its build fingerprint, so that more
can be appended. Workers see a folder of texts like any other.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from sift_index.errors import DocumentError, FingerprintMismatchError, UsageError
from sift_index.formats.canonical import canonical_bytes
from sift_index.formats.location import RemotePath
from sift_index.formats.manifest import current_version, read_manifest
from sift_index.formats.store import IndexPaths, file_names, write_folder_if_absent
from sift_index.pipelines.config import BuildConfig
from sift_index.pipelines.corpus import CorpusReader
from sift_index.pipelines.documents import DocumentRules, prompt_writer
from sift_index.pipelines.progress import BuildProgress
from sift_index.selection.corpus_probes import CorpusProbe, sample_probes
from sift_index.selection.policy import CORPUS, ProbePolicy
from sift_index.selection.probes import texts_digest

DOCUMENTS_FILE = "documents.json"


def with_probes(
    config: BuildConfig, reader: CorpusReader, rules: DocumentRules, progress: BuildProgress
) -> BuildConfig:
    """Return the configuration with `corpus` replaced by the index's own folder of texts.

    Sampling reads the corpus once on the driver, beside the scan that tokenises it in tasks. Of
    builds started at once the first to finish writing wins, and all use what it wrote. Raises
    UsageError for a corpus that is too small, FingerprintMismatchError for an index of others.
    """
    policy = config.policy
    if not isinstance(policy, ProbePolicy) or policy.probe_source != CORPUS:
        return config
    if isinstance(config.output, RemotePath):
        raise UsageError(
            f"{config.output}: expected a folder, where texts of the corpus are kept and workers "
            "read them, found an object store; build into a folder and upload it, or give the "
            "policy a folder of texts"
        )
    paths = IndexPaths(config.output)
    if not file_names(paths.probes, ".txt"):
        probes = sample_probes(_documents(reader), partial(_tokens, rules), policy)
        _require_same_probes(paths, probes)
        write_folder_if_absent(paths.probes, _files(probes))
    progress.note(f"probe texts are those of the corpus in {paths.probes}")
    return replace(config, policy=replace(policy, probe_source=str(paths.probes)))


def _documents(reader: CorpusReader) -> Iterator[tuple[str, str]]:
    """Yield id and text of every document that can be read."""
    for location in reader.locations():
        try:
            document = reader.read(location)
        except DocumentError:
            continue  # the scan has recorded it
        yield document.id, document.text


def _tokens(rules: DocumentRules, text: str) -> int:
    tokenizer = prompt_writer(rules.model, rules.template, rules.tokenizer).tokenizer
    return len(tokenizer(text, add_special_tokens=False, verbose=False).input_ids)


def _require_same_probes(paths: IndexPaths, probes: list[CorpusProbe]) -> None:
    """Refuse an index built with other texts while nothing has been written to its folder."""
    if current_version(paths) is None:
        return
    held = read_manifest(paths).fingerprint.build.get("probes")
    found = texts_digest([probe.text for probe in probes])
    if held != found:
        raise FingerprintMismatchError(
            f"build.probes: index has {held!r}, this build has {found!r}; {paths.root} holds no "
            "probe texts of a corpus: build into another folder, or with the policy it was built by"
        )


def _files(probes: list[CorpusProbe]) -> dict[str, bytes]:
    files = {f"probe-{number}.txt": probe.text.encode() for number, probe in enumerate(probes, 1)}
    used = {name: list(probe.documents) for name, probe in zip(files, probes, strict=True)}
    return {**files, DOCUMENTS_FILE: canonical_bytes(used)}
