"""The worker as a plain object: what it commits, and what a second one cannot change."""

import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sift_index.errors import ModelError, UsageError
from sift_index.formats.failures import FailedDocument
from sift_index.formats.identity import document_key
from sift_index.formats.masks import DocumentMasks
from sift_index.formats.packs import Pack, write_pack
from sift_index.formats.receipts import Receipt, commit, read_receipt, read_receipts
from sift_index.formats.store import IndexPaths
from sift_index.pipelines.build import document_rules
from sift_index.pipelines.cataloguing import catalogue_of
from sift_index.pipelines.corpus import Location, open_corpus
from sift_index.pipelines.documents import ScannedDocument, read_pieces, scan_batch
from sift_index.pipelines.planner import Unit, UnitPlan, cut_units, unit_id
from sift_index.pipelines.scanned import scanned_batch
from sift_index.pipelines.worker import BuildWorker
from sift_index.prompts import PromptWriter
from sift_index.selection.extractor import Extractor
from tests.pipelines.builds import hashes, identities, text, tiny_config, write_corpus


class Site:
    """A corpus of four documents, the one unit it makes, and workers for it."""

    def __init__(self, folder: Path, model: Path) -> None:
        texts = {f"{n}.txt": text(150 + 40 * n, n) for n in range(4)}
        self.corpus = write_corpus(folder / "corpus", texts)
        self.paths = IndexPaths(folder / "index")
        self.paths.create()
        self.config = tiny_config(self.corpus, self.paths.root, model)
        self.reader = open_corpus(self.corpus)
        self.rules = document_rules(self.config)

    def worker(self, **changes) -> BuildWorker:
        return BuildWorker(replace(self.config, **changes), self.reader, self.rules)

    def unit(self) -> Unit:
        (unit,) = self.plan(10_000)
        return unit

    def plan(self, unit_tokens: int) -> UnitPlan:
        found = scan_batch(self.reader, list(self.reader.locations()), self.rules)
        digest = self.worker().fingerprint().build_digest
        return cut_units(catalogue_of([scanned_batch(found)]), unit_tokens, digest)


@pytest.fixture
def site(tmp_path, tiny_model_dir):
    threads = torch.get_num_threads()
    yield Site(tmp_path, tiny_model_dir)
    torch.set_num_threads(threads)


def test_a_unit_becomes_a_pack_and_a_receipt(site) -> None:
    unit = site.unit()
    outcome = site.worker().run_unit(unit)
    receipt = read_receipt(site.paths, unit.id)
    assert outcome.receipt == receipt and outcome.failed == ()
    assert receipt.keys == tuple(sorted(piece.key.hex() for piece in unit.pieces))
    assert receipt.tokens == unit.tokens == sum(152 + 40 * n for n in range(4))
    pack = Pack.open(site.paths.pack_path(receipt.pack.name), receipt.pack)
    pack.verify()
    assert {pack.row(n).key for n in range(4)} == {piece.key for piece in unit.pieces}


def test_a_receipt_says_where_its_unit_was_done_and_how_long_it_took(site) -> None:
    worker, unit = site.worker(), site.unit()
    begun = time.monotonic()
    stats = worker.run_unit(unit).receipt.stats
    parts = [stats[name] for name in ("seconds", "read_seconds", "commit_seconds")]
    assert all(isinstance(part, float) and part >= 0 for part in parts) and stats["seconds"] > 0
    assert sum(parts) <= time.monotonic() - begun + 0.01
    place = worker.place()
    assert (stats["host"], stats["pid"]) == (place.host, place.pid)
    assert (place.host, place.pid) == (socket.gethostname(), os.getpid())
    assert stats["device"] == "cpu"


def test_a_worker_says_where_it_is_before_it_loads_anything(site) -> None:
    assert site.worker(model="/nowhere/model").place().pid == os.getpid()


def test_a_worker_in_a_cluster_names_its_node(local_ray, site) -> None:
    node = local_ray.get_runtime_context().get_node_id()
    assert node.startswith(site.worker().place().node) and len(site.worker().place().node) == 12


def test_a_second_worker_returns_the_first_ones_receipt(site) -> None:
    unit = site.unit()
    first = site.worker().run_unit(unit)
    before = identities(site.paths.root)
    for path in site.corpus.iterdir():
        path.unlink()  # computing it again would fail
    assert site.worker().run_unit(unit) == first
    assert identities(site.paths.root) == before


def test_workers_that_do_not_know_of_each_other_write_the_same_pack(site, tmp_path) -> None:
    unit = site.unit()
    site.worker().run_unit(unit)
    elsewhere = IndexPaths(tmp_path / "elsewhere")
    elsewhere.create()
    site.worker(output=elsewhere.root).run_unit(unit)
    assert hashes(elsewhere.root) == hashes(site.paths.root) != {}


def test_a_small_batch_is_part_of_the_configuration(site, tmp_path) -> None:
    """Every document in a pass of its own: the same keys, and the same masks but for ties."""
    unit = site.unit()
    together = site.worker().run_unit(unit).receipt
    elsewhere = IndexPaths(tmp_path / "elsewhere")
    elsewhere.create()
    alone = site.worker(output=elsewhere.root, batch_tokens=1).run_unit(unit).receipt
    assert alone.keys == together.keys
    for a, b in zip(rows_of(site.paths, together), rows_of(elsewhere, alone), strict=True):
        assert np.mean(a.ca.unpacked() != b.ca.unpacked()) < 0.01


def rows_of(paths: IndexPaths, receipt: Receipt) -> list[DocumentMasks]:
    pack = Pack.open(paths.pack_path(receipt.pack.name), receipt.pack)
    return [pack.row(number) for number in range(len(pack))]


def test_two_units_at_once_become_the_packs_of_one_after_the_other(site, tmp_path) -> None:
    units = site.plan(500)
    assert len(units) > 1
    for unit in units:
        site.worker().run_unit(unit)
    elsewhere = IndexPaths(tmp_path / "elsewhere")
    elsewhere.create()
    worker = site.worker(output=elsewhere.root)
    with ThreadPoolExecutor(len(units)) as threads:
        list(threads.map(worker.run_unit, units))
    assert hashes(elsewhere.root) == hashes(site.paths.root)


@pytest.fixture
def room(monkeypatch) -> Callable[[int], None]:
    """Let the device run out of memory with batches of more tokens than given."""
    launch = Extractor.launch

    def limited(tokens: int) -> None:
        def cramped(self, documents):
            if sum(map(len, documents)) > tokens:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return launch(self, documents)

        monkeypatch.setattr(Extractor, "launch", cramped)

    return limited


def test_a_unit_that_does_not_fit_in_memory_is_halved_and_committed(site, room, caplog) -> None:
    unit = site.unit()  # documents of 152, 192, 232 and 272 tokens
    room(504)
    outcome = site.worker().run_unit(unit)
    assert outcome.failed == () and len(outcome.receipt.keys) == 4
    assert [r.getMessage() for r in caplog.records if "out of memory" in r.getMessage()] == [
        "out of memory with 4 documents of 848 tokens in one batch: going on with halves"
    ]


def test_a_document_that_never_fits_in_memory_is_left_out(site, room) -> None:
    unit = site.unit()
    room(271)
    outcome = site.worker().run_unit(unit)
    assert [failure.source for failure in outcome.failed] == ["3.txt"]
    assert "272 tokens do not fit in the memory" in outcome.failed[0].reason
    assert len(outcome.receipt.keys) == 3


class LateWorker(BuildWorker):
    """A worker that was thought dead: another one commits just before it does."""

    def _commit(self, unit: str, rows: list[DocumentMasks], *rest) -> Receipt:
        self.winner = commit(self._paths, self.other_receipt(unit, rows))
        return super()._commit(unit, rows, *rest)

    def other_receipt(self, unit: str, rows: list[DocumentMasks]) -> Receipt:
        other = [replace(row, tokens=row.tokens, anchor=1) for row in rows]
        digest = self.fingerprint().build_digest
        pack = write_pack(self._paths, unit, digest, other)
        keys = tuple(sorted(row.key.hex() for row in rows))
        return Receipt(unit, digest, pack, keys, 1)


def test_the_first_receipt_wins_over_a_late_one_with_another_pack(site) -> None:
    unit = site.unit()
    late = LateWorker(site.config, site.reader, site.rules)
    outcome = late.run_unit(unit)
    assert outcome.receipt == late.winner == read_receipt(site.paths, unit.id)
    packs = sorted(path.name for path in site.paths.packs.iterdir())
    assert len(packs) == 2 and late.winner.pack.name in packs
    Pack.open(site.paths.pack_path(late.winner.pack.name), late.winner.pack).verify()


def test_a_document_that_changed_is_left_out_and_the_rest_committed(site) -> None:
    unit = site.unit()
    write_corpus(site.corpus, {"2.txt": text(500, 9)})
    outcome = site.worker().run_unit(unit)
    assert [failure.source for failure in outcome.failed] == ["2.txt"]
    assert "changed while the build ran" in outcome.failed[0].reason
    rest = [piece for piece in unit.pieces if piece.location.file != "2.txt"]
    # Its receipt has the id of what it holds: the planned unit is not done.
    digest = site.worker().fingerprint().build_digest
    assert [r.unit for r in read_receipts(site.paths)] == [unit_id(rest, digest)]
    assert outcome.receipt.keys == tuple(sorted(piece.key.hex() for piece in rest))
    assert outcome.receipt.failed == outcome.failed


def test_a_unit_is_tokenised_at_once_and_a_bad_document_is_still_alone(site, monkeypatch) -> None:
    (site.corpus / "4.txt").write_text("x" * 90)
    unit, together = site.unit(), PromptWriter.documents
    given: list[int] = []

    def documents(self, texts):
        given.append(len(texts))
        return together(self, texts)

    monkeypatch.setattr(PromptWriter, "documents", documents)
    write_corpus(site.corpus, {"1.txt": b"caf\xe9", "4.txt": "", "2.txt": text(500, 9)})
    outcome = site.worker().run_unit(unit)
    assert given == [3]
    reasons = {failure.source: failure.reason for failure in outcome.failed}
    assert reasons.keys() == {"1.txt", "2.txt", "4.txt"} and "UTF-8" in reasons["1.txt"]
    assert all("changed while the build ran" in reasons[name] for name in ("2.txt", "4.txt"))
    assert len(outcome.receipt.keys) == 2


def test_a_split_document_is_read_once_for_all_of_its_pieces(site, monkeypatch) -> None:
    rules = replace(site.rules, longest=100)
    pieces = [
        piece
        for document in scan_batch(site.reader, list(site.reader.locations()), rules)
        if isinstance(document, ScannedDocument)
        for piece in document.pieces
    ]
    pieces.sort(key=lambda piece: (piece.tokens, piece.key))  # as planned: parts lie apart
    read, places = type(site.reader).read, list[Location]()

    def reading(self, location):
        places.append(location)
        return read(self, location)

    monkeypatch.setattr(type(site.reader), "read", reading)
    found = read_pieces(site.reader, pieces, rules)
    done = [ids for ids in found if not isinstance(ids, FailedDocument)]
    assert [document_key(ids) for ids in done] == [piece.key for piece in pieces]
    assert sorted(place.file for place in places) == [f"{n}.txt" for n in range(4)]


def test_the_same_unit_is_whole_once_the_document_is_back(site) -> None:
    unit, content = site.unit(), (site.corpus / "2.txt").read_bytes()
    os.unlink(site.corpus / "2.txt")
    failed = site.worker().run_unit(unit)
    assert "No such file" in failed.failed[0].reason
    write_corpus(site.corpus, {"2.txt": content})
    outcome = site.worker().run_unit(unit)
    assert outcome.failed == () and len(outcome.receipt.keys) == 4


def test_a_unit_of_failures_commits_nothing(site) -> None:
    unit = site.unit()
    for number in range(4):
        os.unlink(site.corpus / f"{number}.txt")
    outcome = site.worker().run_unit(unit)
    assert outcome.receipt is None and len(outcome.failed) == 4
    assert identities(site.paths.root) == {}


def test_a_document_that_became_shorter_than_its_piece_is_a_failure(site) -> None:
    rules = replace(site.rules, longest=100)
    found = scan_batch(site.reader, list(site.reader.locations()), rules)
    assert isinstance(found[3], ScannedDocument)
    last = found[3].pieces[-1]
    assert last.number == 2
    write_corpus(site.corpus, {"3.txt": text(50, 3)})
    worker = BuildWorker(site.config, site.reader, rules)
    outcome = worker.run_unit(Unit("ab" * 16, (last,)))
    assert "changed while the build ran" in outcome.failed[0].reason


@pytest.mark.parametrize(
    ("change", "error", "reason"),
    [
        ({"model": "/nowhere/model"}, UsageError, "/nowhere/model"),
        ({"dtype": "float8"}, UsageError, "float8"),
        ({"device": "tpu9000"}, UsageError, "tpu9000"),
    ],
)
def test_a_wrong_setting_shows_when_the_model_is_loaded(site, change, error, reason) -> None:
    worker = site.worker(**change)  # no error yet: Ray would hide it
    with pytest.raises(error, match=reason):
        worker.fingerprint()


def test_a_model_without_weights_is_a_model_error(site, tiny_model_dir, tmp_path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in tiny_model_dir.iterdir():
        if path.suffix == ".json":
            (bare / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ModelError, match="cannot be loaded"):
        site.worker(model=str(bare)).fingerprint()
