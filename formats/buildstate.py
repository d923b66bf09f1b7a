"""What a build says about itself while it runs, and at its end: one small file per build.

A killed build cannot say so. That its file is old and still says `running` is what tells: a build
that lives writes it again every few seconds. No reader and no build depends on it;
`--prune` takes less while one says that it runs.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any

from sift_index.formats.canonical import dump_checked, load_checked
from sift_index.formats.errors import IntegrityError
from sift_index.formats.fields import Fields
from sift_index.formats.problems import damaged
from sift_index.formats.storage import Place
from sift_index.formats.store import (
    IndexPaths,
    file_names,
    read_file,
    remove_all,
    replace_atomically,
)

RUNNING, FINISHED, FAILED, INTERRUPTED, DEAD = (
    "running",
    "finished",
    "failed",
    "interrupted",
    "dead",
)
STATES = (RUNNING, FINISHED, FAILED, INTERRUPTED)
# Six beats missed: a stop of the file system or a long sort in the driver is no death.
SILENT_SECONDS = 60.0
# An object may be replaced between the requests for its size and for its bytes.
_ATTEMPTS = 3
_ADVICE = "remove this file: no build and no reader needs it"
_NAME = re.compile(r"[0-9a-f]{16}\.json\Z")


@dataclass(frozen=True)
class BuildState:
    """One build, as it saw itself at `updated`; times are ISO 8601 in UTC.

    `build` names the run, not what it builds. `message` is the last thing it reported, `reason`
    why it failed. Units and tokens count the work of this run, what was committed before left out;
    `tokens_per_second` is that of the last minutes.
    """

    build: str
    host: str
    pid: int
    command: str
    corpus: str
    model: str
    policy: str
    software: str
    started: str
    updated: str
    state: str = RUNNING
    message: str = ""
    reason: str = ""
    units: int = 0
    units_done: int = 0
    tokens: int = 0
    tokens_done: int = 0
    tokens_per_second: int = 0
    failures: int = 0
    retries: int = 0
    worker_deaths: int = 0

    @property
    def eta_seconds(self) -> int | None:
        """Seconds left at the speed of the last minutes; None while that is not known."""
        rate = self.tokens_per_second
        return (self.tokens - self.tokens_done) // rate if rate and self.state == RUNNING else None

    def silent_seconds(self, now: datetime | None = None) -> float:
        """Return how long ago it wrote, by this machine's clock."""
        return ((now or datetime.now(UTC)) - datetime.fromisoformat(self.updated)).total_seconds()

    def verdict(self, now: datetime | None = None) -> str:
        """Return its state, or `dead` when it stopped writing without having said why."""
        silent = self.state == RUNNING and self.silent_seconds(now) > SILENT_SECONDS
        return DEAD if silent else self.state

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Fields) -> BuildState:
        """Read the fields back; raise IntegrityError for a missing or impossible one."""
        found: dict[str, Any] = {
            field.name: values.number(field.name)
            if field.type == "int"
            else values.text(field.name)
            for field in fields(cls)
        }
        state = cls(**found)
        if state.state not in STATES:
            raise damaged(values.where, f"a state of {', '.join(STATES)}", state.state, _ADVICE)
        for moment in (state.started, state.updated):
            _require_time(moment, values.where)
        return state


def state_path(paths: IndexPaths, build: str) -> Place:
    """Return the file of one build."""
    return paths.state / f"{build}.json"


def state_names(paths: IndexPaths) -> list[str]:
    """Return the names of all state files; other files in the folder are not ours."""
    return [name for name in file_names(paths.state, ".json") if _NAME.match(name)]


def write_state(paths: IndexPaths, state: BuildState) -> None:
    """Write or replace the file of one build; raise BuildError or StorageError."""
    replace_atomically(state_path(paths, state.build), dump_checked(state.to_json()))


def read_states(paths: IndexPaths) -> list[BuildState]:
    """Return what all builds said last, the one that wrote last at the end.

    Files that are removed meanwhile are left out. Raises IntegrityError for a damaged one.
    """
    found = [state for name in state_names(paths) if (state := _read(paths, name)) is not None]
    return sorted(found, key=lambda state: (state.updated, state.started, state.build))


def forget_states(paths: IndexPaths, keep: str) -> None:
    """Remove the files of builds that ended, died, or cannot be read; `keep` is spared.

    One that was taken for dead and lives writes its file again. Raises BuildError or StorageError.
    """
    remove_all([paths.state / name for name in state_names(paths) if _is_over(paths, name, keep)])


def _is_over(paths: IndexPaths, name: str, keep: str) -> bool:
    if name == f"{keep}.json":
        return False
    try:
        state = _read(paths, name)
    except IntegrityError:
        return True
    return state is not None and state.verdict() != RUNNING


def _read(paths: IndexPaths, name: str, attempts: int = _ATTEMPTS) -> BuildState | None:
    path = paths.state / name
    try:
        state = BuildState.from_json(Fields(load_checked(read_file(path), path), path))
    except IntegrityError as error:
        if name not in state_names(paths):
            return None
        if attempts > 1:
            return _read(paths, name, attempts - 1)
        raise damaged(path, "the state of a build", "other bytes", _ADVICE) from error
    if state_path(paths, state.build) != path:
        raise damaged(path, "the state of the build in its name", state.build, _ADVICE)
    return state


def _require_time(text: str, where: object) -> None:
    try:
        zone = datetime.fromisoformat(text).tzinfo
    except ValueError:
        zone = None
    if zone is None:
        raise damaged(where, "a time in ISO 8601 with a zone", text, _ADVICE)
