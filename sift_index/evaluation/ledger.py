"""Scores on disk, one line a question: an evaluation that stops goes on where it was.

A line holds everything a report needs, so files of several runs over different questions can be
joined (`cat`) and reported together.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sift_index.errors import UsageError
from sift_index.evaluation.metrics import PromptScore
from sift_index.evaluation.questions import Question


@dataclass(frozen=True)
class Scored:
    """One question's scores by method; hits and misses are those of the index, 0 without one."""

    id: str
    dataset: str
    source: str
    tokens: int
    scores: Mapping[str, PromptScore]
    hits: int = 0
    misses: int = 0


@dataclass
class Ledger:
    """Scores found so far. With a path they are appended to a file as they come.

    `setting` says what scores depend on beside the question (model, index or policy, options):
    lines of another setting are refused, because they must not be mixed in one report.
    """

    setting: str = ""
    path: Path | None = None
    _known: dict[tuple[str, str], Scored] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, setting: str) -> "Ledger":
        """Read the lines of an earlier run; UsageError for a file that is not ours to go on with.

        A line cut short by a kill at the end of the file is dropped: its question runs again.
        """
        ledger = cls(setting, path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab+") as file:
                file.seek(0)
                *lines, rest = file.read().split(b"\n")
                if rest:
                    file.truncate(file.tell() - len(rest))
        except OSError as problem:
            raise UsageError(f"scores file {path} cannot be used: {problem}") from problem
        for number, line in enumerate(lines, 1):
            ledger._read(number, line)
        return ledger

    def get(self, question: Question, methods: Mapping[str, object]) -> Scored | None:
        """Return a question's scores if they hold every method asked for."""
        found = self._known.get((question.dataset, question.id))
        if found is None or not set(methods) <= set(found.scores):
            return None
        return found

    def add(self, scored: Scored) -> None:
        """Remember one question's scores, in the file first."""
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                values = {"setting": self.setting, **asdict(scored)}
                file.write(json.dumps(values, ensure_ascii=False) + "\n")
        self._known[(scored.dataset, scored.id)] = scored

    def _read(self, number: int, line: bytes) -> None:
        where = f"{self.path} line {number}"
        try:
            values: dict[str, Any] = json.loads(line)
            setting = values.pop("setting")
            scores = {name: PromptScore(**score) for name, score in values.pop("scores").items()}
            scored = Scored(scores=scores, **values)
        except (ValueError, TypeError, KeyError, AttributeError) as problem:
            raise UsageError(
                f"{where}: expected scores of an evaluation, found {line[:40]!r} ({problem}); "
                "give another file"
            ) from problem
        if setting != self.setting:
            raise UsageError(
                f"{where}: expected scores of {self.setting}, found those of {setting}; give "
                "another file for another setting"
            )
        self._known[(scored.dataset, scored.id)] = scored
