"""What `sift-index tune` measures on: prompts from a corpus or from questions, and probe texts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from sift_index.errors import DocumentError, UsageError
from sift_index.formats.presence import resolved

if TYPE_CHECKING:
    from sift_index.evaluation.methods.registry import Setting
    from sift_index.evaluation.questions import Question
    from sift_index.pipelines.corpus import CorpusReader, Document, Location
    from sift_index.selection.policy import ProbePolicy


class TuneData:
    """A corpus or files of questions, never both."""

    def __init__(
        self,
        corpus: Path | None,
        files: tuple[Path, ...],
        folder: Path | None,
        text_field: str,
    ) -> None:
        """Take what the command line gave; UsageError for neither and for both."""
        if (corpus is None) == (not files):
            found = "neither" if corpus is None else "both"
            raise UsageError(
                f"expected a CORPUS to make prompts from, or --questions, found {found}; give one "
                "of them (--corpus is the folder that document names in questions mean)"
            )
        self._corpus, self._files, self._folder = corpus, files, folder
        self._text_field = text_field

    @property
    def name(self) -> str:
        """What to call the data in a policy file."""
        if self._corpus is not None:
            return f"corpus {resolved(self._corpus).name}"
        return "questions " + ", ".join(path.name for path in self._files)

    def sample(
        self, setting: "Setting", count: int, most: int | None, seed: int
    ) -> list["Question"]:
        """Return the questions to tune on; UsageError when there are too few."""
        from sift_index.evaluation.questions import load_question_files
        from sift_index.evaluation.run import prompt_tokens
        from sift_index.tuning.sample import choose_questions, make_questions, token_budget

        writer = setting.writer
        budget = token_budget(setting.loaded.geometry.context, most)
        if self._corpus is not None:
            texts = _texts(self._open(self._corpus), seed)
            return make_questions(texts, writer, count, budget, seed)
        asked = load_question_files(self._files, self._folder)
        return choose_questions(asked, lambda q: prompt_tokens(writer, q), count, budget, seed)

    def require_probes(self, policy: "ProbePolicy") -> None:
        """Raise UsageError when the policy takes probe texts from a corpus and there is none."""
        from sift_index.selection.policy import CORPUS

        if policy.probe_source == CORPUS and self._corpus is None:
            raise UsageError(
                "expected a CORPUS for a policy with probe_source 'corpus', found --questions; "
                "give the corpus that will be indexed, or a policy with other probe texts"
            )

    @contextmanager
    def with_probes(self, policy: "ProbePolicy", setting: "Setting") -> Iterator["ProbePolicy"]:
        """Yield the policy with `corpus` as a folder of the texts that a build of it will take."""
        from sift_index.selection.corpus_probes import sample_probes
        from sift_index.selection.policy import CORPUS

        if self._corpus is None or policy.probe_source != CORPUS:
            yield policy
            return
        reader, tokenizer = self._open(self._corpus), setting.loaded.tokenizer
        probes = sample_probes(
            ((d.id, d.text) for d in _readable(reader, reader.locations(), [])),
            lambda text: len(tokenizer(text, add_special_tokens=False, verbose=False).input_ids),
            policy,
        )
        with TemporaryDirectory() as folder:
            for number, probe in enumerate(probes, 1):
                (Path(folder) / f"probe-{number}.txt").write_bytes(probe.text.encode())
            yield replace(policy, probe_source=folder)

    def _open(self, corpus: Path) -> "CorpusReader":
        from sift_index.pipelines.corpus import open_corpus

        return open_corpus(corpus, self._text_field)


def _texts(reader: "CorpusReader", seed: int) -> list[str]:
    """Return texts of a sample of a corpus, and say how many of them cannot be read."""
    from sift_index.tuning.sample import MAX_DOCUMENTS, sample_of

    failed: list[str] = []
    chosen = sample_of(reader.locations(), MAX_DOCUMENTS, seed)
    texts = [document.text for document in _readable(reader, chosen, failed)]
    if failed:
        click.echo(f"{len(failed)} documents left out, the first: {failed[0]}", err=True)
    return texts


def _readable(
    reader: "CorpusReader", locations: "Iterator[Location] | list[Location]", failed: list[str]
) -> "Iterator[Document]":
    """Yield the documents that can be read; the reasons of the others go to `failed`."""
    for location in locations:
        try:
            yield reader.read(location)
        except DocumentError as problem:
            failed.append(str(problem))
