"""Nodes, workers and drivers that are lost in the middle of a build on three nodes."""

import os
import random
import signal
from collections.abc import Sequence

import pytest

from benchmarks.kills import PHASES, Kill, Trial, Undisturbed
from tests.cluster.checking import judge, proven
from tests.cluster.driving import wait_until
from tests.cluster.workers import computations


def test_a_build_has_one_worker_on_every_gpu(undisturbed) -> None:
    computed = computations(undisturbed.behaviour.ledger)
    workers = {(one.node, one.pid) for one in computed}
    assert len({node for node, _ in workers}) == len(workers) == 3
    found = undisturbed.drivers[0].summary
    assert (found["workers"], found["indexed"], found["retries"]) == (3, 48, 0)


def test_a_node_lost_in_mid_unit_and_a_killed_worker_cost_only_their_units(
    site, nodes, undisturbed
) -> None:
    build = site(pace=0.3, gather=3)
    driver = build.start()
    wait_until(lambda: build.committed() >= 2, "two receipts")
    nodes.lose(nodes.workers[0])
    moments = [proven(build.index)]
    wait_until(lambda: build.committed() >= 8, "eight receipts")
    (worker,) = nodes.build_workers(nodes.workers[0])
    os.kill(worker, signal.SIGKILL)
    moments.append(proven(build.index))
    assert driver.wait() == 0, driver.said
    found = judge(build.index, undisturbed.index, moments, computations(build.behaviour.ledger))
    assert found.clean and not found.split, found
    # Two units in flight at most where something died.
    assert 1 <= driver.summary["retries"] <= 4
    computed = sum(len(one.keys) for one in computations(build.behaviour.ledger))
    assert 48 < computed
    assert driver.summary["new_keys"] == driver.summary["indexed"] == 48


@pytest.mark.slow
def test_when_every_node_is_lost_the_build_goes_on_as_others_join(site, nodes, undisturbed) -> None:
    build = site(pace=0.3, gather=3)
    driver = build.start()
    wait_until(lambda: build.committed() >= 3, "three receipts")
    for node in list(nodes.workers):
        nodes.lose(node, raylet_only=node is nodes.workers[0])
    moments = [proven(build.index)]
    nodes.join(2)
    assert driver.wait() == 0, driver.said
    found = judge(build.index, undisturbed.index, moments, computations(build.behaviour.ledger))
    assert found.clean, found


@pytest.mark.slow
@pytest.mark.parametrize("raylet_only", [False, True])
def test_the_first_worker_may_be_lost_while_it_starts(
    site, nodes, undisturbed, raylet_only
) -> None:
    build = site()
    driver = build.start()
    node = wait_until(lambda: [n for n in nodes.workers if nodes.build_workers(n)], "a worker")[0]
    nodes.lose(node, raylet_only)
    assert driver.wait() == 0, driver.said
    found = judge(build.index, undisturbed.index, [], computations(build.behaviour.ledger))
    assert found.clean and not found.split, found


@pytest.mark.slow
def test_a_node_that_joins_a_running_build_gets_work(site, nodes, undisturbed) -> None:
    while len(nodes.workers) > 1:
        nodes.lose(nodes.workers[0])
    build = site(pace=0.8)
    driver = build.start()
    wait_until(lambda: build.committed() >= 2, "two receipts")
    nodes.join(2)
    assert driver.wait() == 0, driver.said
    computed = computations(build.behaviour.ledger)
    assert {one.node for one in computed} == {node.node_id for node in nodes.workers}
    assert judge(build.index, undisturbed.index, [], computed).clean


def test_kills_at_random_moments_lose_repeat_and_change_nothing(site, nodes, undisturbed) -> None:
    """The short form of `make kills`: one of each kind."""
    victims = iter(["worker", "driver", "node"])

    def draw(rng: random.Random, phases: Sequence[str]) -> Kill:
        return Kill(next(victims), "units", rng.random() / 2, raylet_only=True)

    seconds = dict.fromkeys(PHASES, 0.3)
    expected = Undisturbed(undisturbed.index, undisturbed.committed(), seconds)
    place = site(pace=0.3, commit_pause=0.05, gather=3)
    found = Trial(place, nodes, expected, random.Random(), draw).run(3)
    assert [kill.victim for kill in found.kills] == ["worker", "driver", "node"]
    assert found.verdict.clean and found.stopped == 0, found
