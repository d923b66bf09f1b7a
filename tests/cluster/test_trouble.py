"""Builds on nodes that are slow, full or shared, and into a place that cannot be written."""

import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sift_index.formats.store import IndexPaths
from tests.cluster.checking import judge, proven
from tests.cluster.driving import in_process, wait_until
from tests.cluster.nodes import OBJECT_STORE
from tests.cluster.workers import computations

PIECE = 8 << 20
REFUSED = re.compile("Read-only file system|Permission denied")


def fill_object_stores(address: str, node_ids: list[str], ready: Path) -> None:
    """Hold more objects on every node than its store has room for, and keep making others."""
    ray.init(address=address, log_to_driver=False)
    make = ray.remote(num_cpus=0)(lambda: np.ones(PIECE, np.uint8))
    places = [NodeAffinitySchedulingStrategy(node, soft=False) for node in node_ids]
    tasks = [make.options(scheduling_strategy=place) for place in places]
    held = [task.remote() for task in tasks for _ in range(2 * OBJECT_STORE // PIECE)]
    ray.wait(held, num_returns=len(held), fetch_local=False)
    ready.touch()
    while True:
        held = [*held[len(tasks) :], *(task.remote() for task in tasks)]
        ray.wait(held, num_returns=len(held), fetch_local=False)
        time.sleep(0.2)


@pytest.mark.slow
def test_full_object_stores_do_not_stop_a_build(site, nodes, undisturbed, tmp_path) -> None:
    ready = tmp_path / "ready"
    ids = [node.node_id for node in nodes.workers]
    filler = in_process(fill_object_stores, nodes.address, ids, ready)
    try:
        wait_until(ready.exists, "the object stores to be full")
        build = site(pace=0.1, gather=3)
        found = build.finish()
        assert filler.is_alive()
    finally:
        filler.kill()
        filler.join()
    assert found["retries"] == 0 and found["workers"] == 3
    assert judge(build.index, undisturbed.index, [], computations(build.behaviour.ledger)).clean


@pytest.mark.slow
def test_a_slow_node_does_not_hold_up_a_build(site, nodes, undisturbed) -> None:
    slow = nodes.workers[0].node_id
    build = site(pace=0.1, gather=3, slow_node=slow, slow_pace=300.0)
    found = build.finish()
    assert "event=straggler" in build.drivers[0].said
    computed = computations(build.behaviour.ledger)
    assert slow in {one.node for one in computed}
    assert found["new_keys"] == found["indexed"] == 48
    verdict = judge(build.index, undisturbed.index, [], computed)
    assert verdict.clean and not verdict.split


@pytest.mark.slow
def test_a_node_that_cannot_write_leaves_its_units_to_the_others(site, nodes, undisturbed) -> None:
    full = nodes.workers[1].node_id
    build = site(pace=0.2, gather=3, full_node=full)
    driver = build.start()
    assert driver.wait() == 0, driver.said
    assert "No space left on device" in driver.said
    computed = computations(build.behaviour.ledger)
    assert full in {one.node for one in computed}
    found = judge(build.index, undisturbed.index, [], computed)
    assert found.clean and not found.split, found


@pytest.mark.slow
def test_a_full_volume_stops_a_build_and_room_lets_it_go_on(site, undisturbed, volume) -> None:
    build = site(index=volume("size=160k") / "index", pace=0.1)
    driver = build.start()
    assert driver.wait() == 1
    assert "No space left on device" in driver.summary["error"]["message"]
    moments = [proven(build.index)]
    assert 0 < len(moments[0].keys) < 48
    volume("size=16m")
    assert build.finish()["resumed_keys"] == len(moments[0].keys)
    found = judge(build.index, undisturbed.index, moments, computations(build.behaviour.ledger))
    assert found.clean and not found.split, found


@pytest.mark.parametrize("begun", [False, True])
def test_an_output_that_is_read_only_is_refused_before_anything_is_computed(
    site, volume, tmp_path, begun
) -> None:
    root = os.geteuid() == 0  # who may write everywhere, but not on what is mounted read-only
    index = (volume("size=1m") if root else tmp_path / "closed") / "index"
    index.mkdir(parents=True)
    if begun:
        IndexPaths(index).create()
    if root:
        volume("ro")
    else:
        for folder in (*index.iterdir(), index):
            folder.chmod(0o555)
    build = site(index=index)
    driver = build.start()
    assert driver.wait() == 1
    failure = driver.summary["error"]
    assert failure["type"] == "BuildError" and REFUSED.search(failure["message"])
    assert str(index) in failure["message"] and "writable" in failure["message"]
    assert computations(build.behaviour.ledger) == []
