"""A thousand simulated workers for the real runner: what the driver of a large build costs.

Requests and answers go through Ray as in a build; a few processes stand for all workers. Each
worker does its units one after the other, as long as they would take, and answers with a receipt of
all their keys. Nothing is computed and nothing written.
"""

import asyncio
import io
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import ray

from sift_index.formats.fileinfo import PackInfo
from sift_index.formats.receipts import Receipt, Stat
from sift_index.pipelines.actors import RayWorkers
from sift_index.pipelines.bench.plan_inputs import scanned_batches
from sift_index.pipelines.cataloguing import catalogue_of
from sift_index.pipelines.cluster import ray_session
from sift_index.pipelines.planner import Unit, UnitPlan, cut_units
from sift_index.pipelines.progress import LogProgress
from sift_index.pipelines.runner import UnitRunner
from sift_index.pipelines.worker import Place, UnitOutcome

DIGEST = "0" * 32
RATE = 50_000  # tokens a second of one worker
HOSTS = 2  # processes that stand for all workers
MEAN_TOKENS = 210  # of a document


class Host:
    """One process for many workers, each of which does its units one after the other."""

    def __init__(self) -> None:
        self._turns: dict[int, asyncio.Lock] = {}

    async def place(self, worker: int) -> Place:
        """Say where a worker is."""
        return Place(f"node-{worker // 8:03}", "", 0)

    async def fingerprint(self, worker: int) -> str:
        """Say what a worker would build."""
        return DIGEST

    async def run_unit(self, worker: int, late: float, unit: Unit) -> UnitOutcome:
        """Take as long as the unit would, `late` seconds more for the first, and prove its keys."""
        keys = tuple(sorted(piece.key.hex() for piece in unit.pieces))
        first = worker not in self._turns
        async with self._turns.setdefault(worker, asyncio.Lock()):
            await asyncio.sleep(unit.tokens / RATE + (late if first else 0.0))
        pack = PackInfo(f"{unit.id}-{'0' * 16}.arrow", 1, "0" * 64, len(keys))
        stats: dict[str, Stat] = {"seconds": unit.tokens / RATE, "host": f"node-{worker // 8:03}"}
        return UnitOutcome(Receipt(unit.id, DIGEST, pack, keys, unit.tokens, (), stats))


@dataclass(frozen=True)
class Method:
    """A method of one worker as Ray's handles have it."""

    remote: Callable[..., Any]


class Handle:
    """One of a host's workers; its first unit takes longer, so that not all end at once."""

    def __init__(self, host: Any, worker: int, late: float) -> None:
        self.host = host
        self.place = Method(partial(host.place.remote, worker))
        self.fingerprint = Method(partial(host.fingerprint.remote, worker))
        self.run_unit = Method(partial(host.run_unit.remote, worker, late))


@dataclass(frozen=True)
class Rounds:
    """A plan that has the units of another several times, under other names."""

    plan: UnitPlan
    count: int

    @property
    def tokens(self) -> int:
        """Tokens of all units."""
        return self.count * self.plan.tokens

    def __len__(self) -> int:
        return self.count * len(self.plan)

    def __iter__(self) -> Iterator[Unit]:
        for number in range(self.count):
            for unit in self.plan:
                yield replace(unit, id=f"{number:08x}{unit.id[8:]}")


def drive(workers: int, unit_tokens: int, rounds: int, seed: int) -> dict[str, float]:
    """Run `rounds` units a worker; return what the driver's process took of a core meanwhile."""
    documents = workers * unit_tokens // MEAN_TOKENS
    plan = cut_units(catalogue_of(scanned_batches(documents, seed)), unit_tokens, DIGEST)
    units = Rounds(plan, rounds)
    with ray_session("local"):
        remote = ray.remote(Host).options(num_cpus=0, max_concurrency=4 * workers)
        hosts: list[Any] = [remote.remote() for _ in range(HOSTS)]
        ray.get([host.place.remote(0) for host in hosts])
        numbers = count()

        def start() -> Handle:
            number = next(numbers)
            late = number % workers / workers * unit_tokens / RATE
            return Handle(hosts[number % HOSTS], number, late)

        runner = UnitRunner(
            workers=RayWorkers(start, kill=lambda worker: None),
            wanted=lambda waiting: min(workers, waiting),
            admit=lambda found: None,
            source=str,
            build_digest=DIGEST,
            progress=LogProgress(io.StringIO()),
        )
        wall, cpu = time.perf_counter(), time.process_time()
        done = runner.run(units)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "seconds": wall,
        "driver_cpu_share": cpu / wall,
        "units": len(done.receipts),
        "keys": sum(len(receipt.keys) for receipt in done.receipts),
        "tokens": units.tokens,
        "units_per_second": len(units) / wall,
        "simulated_tokens_per_second": units.tokens / wall,
        "timeouts": done.timeouts,
        "retries": done.retries,
    }
