"""Kills drivers, workers and nodes of builds at random moments, and counts what was lost.

python -m benchmarks.kills [--points 50] [--seed 0]

Builds run on a cluster of three nodes of this machine (`tests/cluster`), slowed down so that there
is something to interrupt. Each is hit one to five times: a dead driver is started again with the
same command, a dead worker or node is left to the build, and a new node joins later. Then it may
finish, and its index is compared with that of an undisturbed build.
"""

import argparse
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

from sift_index.evaluation.results import merge_results, result_rows
from tests.cluster.checking import Proven, Verdict, judge, proven
from tests.cluster.driving import Driver, Site
from tests.cluster.nodes import NODES, Nodes, three_nodes
from tests.cluster.workers import Behaviour, computations
from tests.pipelines.builds import text, write_corpus
from tests.tiny import save_tiny_model

RESULTS = Path(__file__).parent / "results"
VICTIMS = ("driver", "worker", "node")
PHASES: tuple[str, ...] = ("scanning", "loading", "first commit", "units", "publishing")
DOCUMENTS, UNIT_TOKENS, PACE, COMMIT_PAUSE = 300, 1100, 0.5, 0.05
MOST_KILLS = 5
ROUNDS = 4
# A build that is not done by then hangs, which is a failure of its own.
PATIENCE = 240.0
BASELINE = "undisturbed build"
# What stands beside damage to files in faults.json.
PROMISED = ("kills", "lost", "duplicated", "recomputed")


@dataclass(frozen=True)
class Kill:
    """One kill: of whom, in which phase, and `share` of the way through it.

    A node is lost with all its processes, or only its raylet is, and its workers notice.
    """

    victim: str
    phase: str
    share: float
    raylet_only: bool


def random_kill(rng: random.Random, phases: Sequence[str]) -> Kill:
    """Draw a kill in one of these phases; there are no workers to kill while a corpus is read."""
    phase = rng.choice(phases)
    victims = [victim for victim in VICTIMS if phase != PHASES[0] or victim != "worker"]
    return Kill(rng.choice(victims), phase, rng.random(), rng.random() < 0.5)


@dataclass(frozen=True)
class Undisturbed:
    """The build to compare with: its index, its number of units, and seconds of each phase."""

    index: Path
    units: int
    seconds: dict[str, float]


@dataclass
class Outcome:
    """One build that was killed: the kills, the verdict, and what it took.

    stopped: runs that ended by themselves before all was done. units: how many the build has;
    computed: how often one was begun, those that died with their worker included.
    """

    kills: list[Kill]
    verdict: Verdict
    stopped: int
    units: int
    computed: int


@dataclass
class Trial:
    """One build that is killed again and again until it may finish."""

    site: Site
    nodes: Nodes
    undisturbed: Undisturbed
    rng: random.Random
    draw: Callable[[random.Random, Sequence[str]], Kill] = random_kill
    kills: list[Kill] = field(default_factory=list)
    moments: list[Proven] = field(default_factory=list)
    stopped: int = 0

    def run(self, kills: int) -> Outcome:
        """Kill up to so many times, let it finish, and compare.

        Raises TimeoutError for a build that hangs, RuntimeError for one that cannot be finished.
        """
        driver = self._start()
        phases = PHASES
        while len(self.kills) < kills and not self._published():
            if not driver.running:
                self.stopped += driver.process.exitcode > 0  # by itself: a signal is negative
                driver, phases = self._start(), PHASES
            kill = self.draw(self.rng, phases)
            if self._reached(driver, kill) and self._hit(driver, kill):
                self.kills.append(kill)
                print(f"  {kill}: {self.site.committed()} units committed", flush=True)
                self._look()
            phases = self._phases_left()
        self._finish(driver)
        computed = computations(self.site.behaviour.ledger)
        found = judge(self.site.index, self.undisturbed.index, self.moments, computed)
        return Outcome(self.kills, found, self.stopped, len(self.site.receipts()), len(computed))

    def _start(self) -> Driver:
        self._look()
        self.nodes.join()
        return self.site.start()

    def _look(self) -> None:
        self.moments.append(proven(self.site.index))

    def _published(self) -> bool:
        return any(self.site.index.glob("manifest-*.json"))

    def _phases_left(self) -> tuple[str, ...]:
        return PHASES[3:] if self.site.committed() < self.undisturbed.units - 1 else PHASES[4:]

    def _reached(self, driver: Driver, kill: Kill) -> bool:
        """Wait for the moment of a kill; False when the build ended before."""
        reached = self._condition(driver, kill)
        wait(lambda: reached() or not driver.running, driver)
        time.sleep(kill.share * self.undisturbed.seconds[kill.phase])
        return driver.running

    def _condition(self, driver: Driver, kill: Kill) -> Callable[[], bool]:
        committed, last = self.site.committed(), self.undisturbed.units
        packs = self.site.files("packs")
        some = committed + 1 + int(kill.share * max(0, last - committed - 1))
        return {
            "scanning": lambda: True,
            "loading": lambda: "documents read" in driver.said,
            "first commit": lambda: self.site.files("packs") > packs,
            "units": lambda: self.site.committed() >= some,
            "publishing": lambda: self.site.committed() >= last,
        }[kill.phase]

    def _hit(self, driver: Driver, kill: Kill) -> bool:
        """Kill; False where there is no worker to be killed."""
        if kill.victim == "driver":
            driver.kill()
        elif kill.victim == "node":
            self.nodes.lose(self.rng.choice(self.nodes.workers), kill.raylet_only)
            time.sleep(2 * self.rng.random())
            self.nodes.join()
        else:
            return self._kill_a_worker()
        return True

    def _kill_a_worker(self) -> bool:
        found = [pid for node in self.nodes.workers for pid in self.nodes.build_workers(node)]
        with suppress(ProcessLookupError):
            for pid in self.rng.sample(found, min(1, len(found))):
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    def _finish(self, driver: Driver) -> None:
        """Let it run, and run it again while there is something left."""
        for _ in range(ROUNDS):
            if not driver.running:
                driver = self._start()
            if driver.wait(PATIENCE) == 0:
                return
            self.stopped += 1
        raise RuntimeError(f"a build cannot be finished:\n{driver.said}")


def wait(condition: Callable[[], bool], driver: Driver) -> None:
    """Wait for what a running build does; raise TimeoutError when it does not."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"a build hangs:\n{driver.said}")
        time.sleep(0.002)


def build_undisturbed(site: Site) -> Undisturbed:
    """Build with nothing in the way, watching how long the phases take."""
    started = time.monotonic()
    driver, times = site.start(), [started]
    for condition in (lambda: "documents read" in driver.said, lambda: site.committed() > 0):
        wait(lambda reached=condition: reached() or not driver.running, driver)  # type: ignore[misc]
        times.append(time.monotonic())
    if driver.wait(PATIENCE):
        raise RuntimeError(f"the undisturbed build failed:\n{driver.said}")
    seconds = [times[1] - times[0], times[2] - times[1], 2 * COMMIT_PAUSE, PACE, 2 * COMMIT_PAUSE]
    return Undisturbed(site.index, site.committed(), dict(zip(PHASES, seconds, strict=True)))


def run(points: int, seed: int, folder: Path, nodes: Nodes) -> list[Outcome]:
    """Deliver `points` kills over as many builds as that takes."""
    rng = random.Random(seed)
    model = save_tiny_model(folder / "model")
    texts = {f"{i:03}.txt": text(60 + i % 97, i) for i in range(DOCUMENTS)}
    corpus = write_corpus(folder / "corpus", texts)
    options = ("--unit-tokens", str(UNIT_TOKENS))

    def site(name: str) -> Site:
        behaviour = Behaviour(folder / name / "ledger", NODES, PACE, COMMIT_PAUSE)
        return Site(folder / name, corpus, model, nodes.address, behaviour, options)

    undisturbed = build_undisturbed(site("undisturbed"))
    outcomes: list[Outcome] = []
    while (left := points - sum(len(found.kills) for found in outcomes)) > 0:
        trial = Trial(site(f"build-{len(outcomes)}"), nodes, undisturbed, rng)
        outcomes.append(trial.run(min(left, rng.randint(1, MOST_KILLS))))
        print(f"build {len(outcomes)}: {outcomes[-1].verdict}", flush=True)
    return outcomes


def summary(outcomes: Sequence[Outcome]) -> list[tuple[str, str, float, str]]:
    """Return (case, metric, value, unit): totals, and kills by victim and phase."""
    verdicts = [found.verdict for found in outcomes]
    kills = [kill for found in outcomes for kill in found.kills]
    totals = {
        ("kills", "kills"): len(kills),
        ("lost", "documents"): sum(v.lost for v in verdicts),
        ("duplicated", "rows"): sum(v.duplicated for v in verdicts),
        ("recomputed", "documents"): sum(v.recomputed for v in verdicts),
        ("replaced", "files"): sum(v.replaced for v in verdicts),
        ("different", "builds"): sum(bool(v.problems) for v in verdicts),
        ("builds", "builds"): len(outcomes),
        ("split", "builds"): sum(v.split for v in verdicts),
        ("stopped", "builds"): sum(found.stopped for found in outcomes),
        ("units", "units"): sum(found.units for found in outcomes),
        ("computed", "units"): sum(found.computed for found in outcomes),
    }
    rows = [("build", metric, float(value), unit) for (metric, unit), value in totals.items()]
    kinds = Counter((kill.victim, kill.phase) for kill in kills)
    return rows + [
        (f"build-{victim}", phase.replace(" ", "_"), float(count), "kills")
        for (victim, phase), count in sorted(kinds.items())
    ]


def main() -> None:
    """Kill, and record what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, three_nodes() as nodes:
        outcomes = run(arguments.points, arguments.seed, Path(folder), nodes)
    rows = result_rows(summary(outcomes), torch.device("cpu"), baseline=BASELINE)
    merge_results(RESULTS / "kills.json", "kills", rows)
    promised = [row for row in rows if row.case == "build" and row.metric in PROMISED]
    merge_results(RESULTS / "faults.json", "faults", promised)
    for row in rows:
        print(f"{row.case:18} {row.metric:16} {row.value:8,.0f}")


if __name__ == "__main__":
    main()
