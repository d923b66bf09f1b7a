"""The same work done twice at the same moment: one receipt, and every row once."""

import json
from pathlib import Path
from typing import Any

import pytest
import ray

from sift_index.formats.reader import IndexReader
from sift_index.pipelines.build import document_rules
from sift_index.pipelines.corpus import open_corpus
from sift_index.pipelines.documents import ScannedDocument, scan_batch
from sift_index.pipelines.planner import Unit, unit_id
from tests.cluster.checking import judge, proven
from tests.cluster.driving import Site, in_process
from tests.cluster.workers import computations, injected
from tests.pipelines.builds import tiny_config

TOGETHER = 4


def run_units_twice(site: Site, answer: Path) -> None:
    """Give every unit of four documents to two workers at once; write what both answered."""
    config = tiny_config(site.corpus, site.index, site.model, device="cuda")
    rules, reader = document_rules(config), open_corpus(site.corpus, "text", None)
    ray.init(address=site.address, log_to_driver=False)
    worker = ray.remote(injected(site.behaviour)).options(num_cpus=1, num_gpus=1)
    workers: list[Any] = [worker.remote(config, reader, rules) for _ in range(2)]
    digest = ray.get([worker.fingerprint.remote() for worker in workers])[0].build_digest
    found = scan_batch(reader, list(reader.locations()), rules)
    pieces = [piece for item in found if isinstance(item, ScannedDocument) for piece in item.pieces]
    outcomes = []
    for start in range(0, len(pieces), TOGETHER):
        part = tuple(pieces[start : start + TOGETHER])
        unit = Unit(unit_id(part, digest), part)
        outcomes.append(ray.get([worker.run_unit.remote(unit) for worker in workers]))
    answer.write_text(json.dumps([[o.receipt.to_json() for o in pair] for pair in outcomes]))


def test_a_unit_that_two_workers_commit_at_once_counts_once(site, undisturbed, tmp_path) -> None:
    build = site(commit_pause=0.2)
    process = in_process(run_units_twice, build, tmp_path / "answers")
    process.join(120)
    assert process.exitcode == 0
    answers = json.loads((tmp_path / "answers").read_text())
    computed = computations(build.behaviour.ledger)
    assert len(computed) == 2 * len(answers) == 24  # nobody saw the other's receipt in time
    assert len({one.node for one in computed}) == 2
    assert all(first == second for first, second in answers)
    assert len(build.receipts()) == build.files("packs") == len(answers)
    moments = [proven(build.index)]
    found = build.finish()
    assert (found["new_keys"], found["resumed_keys"], found["published"]) == (0, 48, True)
    verdict = judge(build.index, undisturbed.index, moments, computed)
    assert verdict.split and not verdict.recomputed and verdict.clean, verdict


@pytest.mark.slow
def test_two_builds_of_one_index_at_once_make_one_index(site, undisturbed) -> None:
    first, other = site("first", pace=0.2), site("other", pace=0.2)
    other.index = first.index
    drivers = [first.start(), other.start()]
    assert [driver.wait(240) for driver in drivers] == [0, 0], [driver.said for driver in drivers]
    assert [driver.summary["indexed"] for driver in drivers] == [48, 48]
    computed = computations(first.behaviour.ledger) + computations(other.behaviour.ledger)
    verdict = judge(first.index, undisturbed.index, [], computed)
    assert verdict.clean and not verdict.split, verdict
    assert len(IndexReader.open(first.index)) == 48
