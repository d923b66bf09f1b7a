"""Scores on disk, one line a question: an evaluation that stops goes on where it was.

A line holds everything a report needs, so files of several runs over different questions can be
joined (`cat`) and reported together. What no longer fits a question or a policy is run again.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from sift_index.errors import UsageError
from sift_index.evaluation.metrics import PromptScore

_BEGIN = b'{"setting": '
_OPTIONAL = {field.name for field in fields(PromptScore) if field.default is None}


@dataclass(frozen=True)
class Scored:
    """One question's scores by method.

    prompt: digest of the prompt's tokens and the accepted answers. policies: digest of the policy
    behind each method that has one. hits and misses are those of the index, 0 without one.
    """

    id: str
    dataset: str
    source: str
    prompt: str
    tokens: int
    scores: Mapping[str, PromptScore]
    policies: Mapping[str, str] = field(default_factory=dict)
    hits: int = 0
    misses: int = 0


@dataclass
class Ledger:
    """Scores found so far. With a path they are appended to a file as they come.

    setting: what all scores depend on beside questions and policies (model, index, options): lines
    of another setting are refused, because they must not be mixed in one report. policies: digest
    of the policy behind each method, by its label.
    """

    setting: str = ""
    policies: Mapping[str, str] = field(default_factory=dict)
    path: Path | None = None
    _known: dict[tuple[str, str], Scored] = field(default_factory=dict)
    _cut_at: int | None = None

    @classmethod
    def open(
        cls,
        path: Path,
        setting: str,
        policies: Mapping[str, str] | None = None,
        append: bool = True,
    ) -> "Ledger":
        """Read the lines of an earlier run; UsageError for a file that is not ours to go on with.

        A last line that a kill cut short goes when the next one is written; nothing is changed
        before. append: make sure now that lines can be added.
        """
        ledger = cls(setting, policies or {}, path)
        try:
            data = path.read_bytes() if path.exists() else b""
            if append:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.open("ab").close()
        except OSError as problem:
            raise UsageError(f"scores file {path} cannot be used: {problem}") from problem
        ledger._read_all(data)
        return ledger

    def get(self, dataset: str, name: str, prompt: str, methods: Iterable[str]) -> Scored | None:
        """Return a question's scores if they are of this prompt and hold every method asked for."""
        found = self._known.get((dataset, name))
        if found is None or found.prompt != prompt:
            return None
        held = (
            method in found.scores and found.policies.get(method) == self.policies.get(method)
            for method in methods
        )
        return found if all(held) else None

    def add(self, scored: Scored) -> None:
        """Remember one question's scores, in the file first; UsageError when that cannot be."""
        if self.path is not None:
            values = {"setting": self.setting, **asdict(scored)}
            line = json.dumps(values, ensure_ascii=False).encode() + b"\n"
            try:
                self._append(self.path, line)
            except OSError as problem:
                raise UsageError(
                    f"scores file {self.path} cannot be written: {problem}; make room and run the "
                    "same command again, which goes on behind the last whole line"
                ) from problem
        self._known[(scored.dataset, scored.id)] = scored

    def _append(self, path: Path, line: bytes) -> None:
        with path.open("ab") as file:
            if self._cut_at is not None:
                file.truncate(self._cut_at)
                self._cut_at = None
            file.write(line)

    def _read_all(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        for number, line in enumerate(lines, 1):
            self._read(number, line)
        if rest:
            if not (rest.startswith(_BEGIN) or _BEGIN.startswith(rest)):
                raise self._foreign(len(lines) + 1, rest, "it begins like no line of scores")
            self._cut_at = len(data) - len(rest)

    def _read(self, number: int, line: bytes) -> None:
        try:
            values: dict[str, Any] = json.loads(line)
            setting = values.pop("setting")
            scored = _scored(values)
        except (ValueError, TypeError, KeyError, AttributeError) as problem:
            raise self._foreign(number, line, str(problem)) from problem
        if setting != self.setting:
            raise UsageError(
                f"{self.path} line {number}: expected scores of {self.setting}, found those of "
                f"{setting}; give another file for another setting"
            )
        self._known[(scored.dataset, scored.id)] = scored

    def _foreign(self, number: int, line: bytes, why: str) -> UsageError:
        return UsageError(
            f"{self.path} line {number}: expected scores of an evaluation, found {line[:40]!r} "
            f"({why}); give another file"
        )


def _scored(values: dict[str, Any]) -> Scored:
    """Build a line's scores; TypeError or ValueError for values of the wrong kind."""
    scores = {name: _score(score) for name, score in values.pop("scores").items()}
    scored = Scored(scores=scores, **values)
    texts = (scored.id, scored.dataset, scored.source, scored.prompt, *scored.policies.values())
    counts = (scored.tokens, scored.hits, scored.misses)
    if not all(type(text) is str for text in texts) or not all(type(n) is int for n in counts):
        raise TypeError("a field has another type")
    return scored


def _score(values: dict[str, Any]) -> PromptScore:
    for name, value in values.items():
        if value is None and name in _OPTIONAL:
            continue
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError(f"{name} is {value!r}")
    return PromptScore(**values)
