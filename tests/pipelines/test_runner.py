"""The runner with real Ray actors that fail, lie and die on purpose.

The actors take keys and give names of receipts, so that a new one costs a fraction of a second
instead of loading a model.
"""

import os
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from sift_index.errors import BuildError, DocumentError, FormatError, IntegrityError
from sift_index.pipelines.actors import RayWorkers
from sift_index.pipelines.limits import LIMITS, Limits
from sift_index.pipelines.runner import UnitRunner
from tests.pipelines.pretended import DIGEST, Plan, Recorder, a_unit


class Method:
    def __init__(self, remote) -> None:
        self.remote = remote


class Handle:
    """An actor with the methods of BuildWorker, told the files of a unit instead of the unit."""

    def __init__(self, actor) -> None:
        self.actor = actor
        self.place = Method(lambda: actor.place.remote())
        self.fingerprint = Method(lambda: actor.fingerprint.remote())
        self.run_unit = Method(
            lambda unit: actor.run.remote(
                unit.id, [int(piece.location.file) for piece in unit.pieces]
            )
        )


@pytest.fixture
def crew(local_ray, tmp_path):
    """Start workers that misbehave for some documents; `tries` counts calls by unit."""
    started: list[Handle] = []

    class Misbehaving:
        def __init__(self, log: str, behaviour: dict[int, object], digest: str) -> None:
            self.log, self.behaviour, self.digest = log, behaviour, digest

        def place(self):
            return SimpleNamespace(host="a-host")

        def fingerprint(self):
            return self.digest

        def run(self, unit: str, documents: list[int]):
            with open(self.log, "a") as file:
                file.write(f"{unit} {documents}\n")
            for document in documents:
                answer = self.behaviour.get(document)
                if answer == "die":
                    os._exit(1)
                if answer == "die once" and not os.path.exists(f"{self.log}.died"):
                    open(f"{self.log}.died", "w").close()
                    os._exit(1)
                if answer == "slow":
                    time.sleep(0.5)
                if answer == "hang once" and not os.path.exists(f"{self.log}.hung"):
                    open(f"{self.log}.hung", "w").close()
                    time.sleep(600)
                if isinstance(answer, Exception):
                    raise answer
            receipt = SimpleNamespace(unit=unit, documents=tuple(documents))
            return SimpleNamespace(receipt=receipt, failed=())

    class Crew:
        log = tmp_path / "calls"
        progress = Recorder()
        digests = [DIGEST]
        options: dict[str, int] = {}

        def start(self, behaviour: dict[int, object]) -> Handle:
            digest = self.digests[min(len(started), len(self.digests) - 1)]
            actor = local_ray.remote(Misbehaving).options(num_cpus=0, **self.options)
            started.append(Handle(actor.remote(str(self.log), behaviour, digest)))
            return started[-1]

        def run(self, units, behaviour, workers=1, limits: Limits = LIMITS):
            runner = UnitRunner(
                workers=RayWorkers(
                    lambda: self.start(behaviour), lambda handle: local_ray.kill(handle.actor)
                ),
                wanted=lambda units: workers,
                admit=self.admit,
                source=lambda location: location.file,
                build_digest=DIGEST,
                progress=self.progress,
                limits=limits,
            )
            return runner.run(Plan(units))

        def admit(self, digest: str) -> None:
            if digest != DIGEST:
                raise BuildError(f"found a worker of {digest}; make it the same on every node")

        @property
        def tries(self) -> Counter[str]:
            return Counter(line.split()[0] for line in Path(self.log).read_text().splitlines())

        @property
        def started(self) -> int:
            return len(started)

    yield Crew()
    for handle in started:
        local_ray.kill(handle.actor)


def documents_of(result) -> list[int]:
    return sorted(document for receipt in result.receipts for document in receipt.documents)


def failed_of(result) -> dict[str, str]:
    found = {failure.source: failure.reason for failure in result.failed}
    assert len(found) == len(result.failed)
    return found


def test_every_unit_is_done_once(crew) -> None:
    units = [a_unit(2 * n, 2 * n + 1) for n in range(10)]
    result = crew.run(units, {}, workers=2)
    assert documents_of(result) == list(range(20))
    assert crew.tries == {unit.id: 1 for unit in units}
    assert (result.failed, result.retries) == ([], 0)
    assert crew.progress.size == (10, 200)
    assert [update[0] for update in crew.progress.updates] == list(range(1, 11))
    assert crew.progress.updates[-1] == (10, 200, 0)


def test_a_document_that_always_raises_is_isolated_and_recorded(crew) -> None:
    units = [a_unit(0, 1), a_unit(2, 3, 4, 5, 6), a_unit(7, 8)]
    result = crew.run(units, {5: ValueError("token 5 is poison")})
    assert documents_of(result) == [0, 1, 2, 3, 4, 6, 7, 8]
    assert failed_of(result) == {"5": "ValueError: token 5 is poison"}
    assert crew.tries[units[1].id] == crew.tries[a_unit(5).id] == 3
    assert crew.tries[a_unit(2, 3).id] == crew.tries[units[0].id] == 1
    assert crew.started == 1 and result.retries == 2 * 4  # [2-6], [4, 5, 6], [5, 6], [5]
    assert any("split" in note and "poison" in note for note in crew.progress.notes)
    assert crew.progress.updates[-1] == (3, 90, 1)
    assert all(done <= 3 for done, _, _ in crew.progress.updates)


def test_documents_that_kill_their_worker_are_isolated_and_the_rest_done(crew) -> None:
    units = [a_unit(0, 1, 2), a_unit(4), a_unit(5)]
    result = crew.run(units, {1: "die", 2: "die"})
    assert documents_of(result) == [0, 4, 5]
    assert failed_of(result).keys() == {"1", "2"}
    assert "its worker died" in failed_of(result)["1"]
    assert crew.tries[a_unit(1).id] == crew.tries[a_unit(2).id] == 3
    assert crew.started == 1 + 12  # three deaths of the unit, of its half and of each document


def test_the_unit_behind_a_dying_one_is_not_blamed(crew) -> None:
    result = crew.run([a_unit(0), a_unit(1)], {0: "die"})
    assert failed_of(result).keys() == {"0"}
    assert documents_of(result) == [1]
    assert result.retries == 2 and not any(a_unit(1).id[:12] in n for n in crew.progress.notes)


def test_a_unit_that_was_blamed_for_another_ones_fault_is_not_given_up(crew) -> None:
    crew.options = {"max_concurrency": 2}  # the second unit kills the worker under the first
    result = crew.run([a_unit(0), a_unit(1)], {0: "slow", 1: "die"})
    assert documents_of(result) == [0]
    assert failed_of(result).keys() == {"1"}


def test_one_death_costs_one_retry(crew) -> None:
    units = [a_unit(n) for n in range(6)]
    result = crew.run(units, {3: "die once"}, workers=2)
    assert documents_of(result) == list(range(6)) and result.failed == []
    assert result.retries == 1 and crew.started == 3


@pytest.mark.parametrize(
    "error", [BuildError("no space left"), IntegrityError("damaged"), FormatError("strange")]
)
def test_what_another_try_cannot_cure_stops_the_run(crew, error) -> None:
    with pytest.raises(type(error), match=str(error)) as caught:
        crew.run([a_unit(0), a_unit(1)], {0: error})
    assert type(caught.value) is type(error)  # not Ray's wrapper around it
    assert crew.tries[a_unit(0).id] == 1


def test_an_error_about_a_document_is_no_reason_to_stop(crew) -> None:
    result = crew.run([a_unit(0), a_unit(1)], {0: DocumentError("gone")})
    assert failed_of(result) == {"0": "DocumentError: gone"}


def test_workers_that_keep_dying_stop_the_run(crew) -> None:
    limits = Limits(troubles=2, troubles_per_slot=0)
    with pytest.raises(BuildError, match="(?s)workers failed 3 times in a row.*same command"):
        crew.run([a_unit(0, 1)], {0: "die", 1: "die"}, limits=limits)


def test_a_unit_that_hangs_has_its_worker_killed_and_is_done_by_another(crew) -> None:
    limits = Limits(tick=0.1, unit_seconds=1.5)
    result = crew.run([a_unit(n) for n in range(6)], {3: "hang once"}, limits=limits)
    assert documents_of(result) == list(range(6)) and result.failed == []
    assert (result.retries, result.timeouts, crew.started) == (1, 1, 2)


def test_a_late_unit_is_done_by_an_idle_worker_without_waiting(crew) -> None:
    limits = Limits(tick=0.1, straggler_floor=1.0)
    begun = time.monotonic()
    units = [a_unit(n) for n in range(12)]
    result = crew.run(units, {3: "hang once"}, workers=2, limits=limits)
    assert documents_of(result) == list(range(12)) and result.failed == []
    assert result.reissued >= 1 and result.retries == 0 and crew.started == 2
    assert time.monotonic() - begun < 60


def test_a_replaced_worker_of_another_build_is_refused(crew) -> None:
    crew.digests = [DIGEST, "cd" * 16]
    with pytest.raises(BuildError, match="cdcd.*same on every node"):
        crew.run([a_unit(0)], {0: "die"})


def test_a_worker_without_a_place_does_not_hold_up_the_others(crew, local_ray) -> None:
    """A dead worker's place may be gone with its node: units go to those that answer."""
    start = crew.start

    class Nowhere:
        def place(self):
            return None

        def fingerprint(self):
            return None

        def run(self, unit, documents):
            return None

    def start_without_place(behaviour):
        if crew.started < 2:
            return start(behaviour)
        return Handle(local_ray.remote(Nowhere).options(num_cpus=10_000).remote())

    crew.start = start_without_place
    result = crew.run([a_unit(n) for n in range(8)], {2: "die once"}, workers=2)
    assert documents_of(result) == list(range(8)) and result.retries == 1
