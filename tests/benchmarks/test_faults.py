from __future__ import annotations

import importlib.util
import json
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import faults, fuzz, fuzz_targets
from sift_index.errors import UsageError
from sift_index.formats import blob
from sift_index.formats.errors import IntegrityError
from sift_index.formats.packs import Pack
from tests.formats.files import rewrite


@pytest.mark.parametrize("name", ["levels", "plain"])
def test_no_random_damage_passes_unseen(name: str) -> None:
    counts = faults.run(faults.GOLDEN / name, 150, seed=1)
    assert {found for _, _, found in counts} <= {*faults.FOUND}
    assert {kind for kind, _, _ in counts} == {"manifest", "keys", "pack", "receipt", "failure"}
    totals = {(case, metric): n for case, metric, n, _ in faults.summary(counts)}
    assert totals["format", "flips"] + totals["format", "cuts"] == 150
    assert totals["format", "flips_missed"] == totals["format", "cuts_missed"] == 0


def test_a_reader_without_checksums_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count of missed damage can be other than zero."""
    root = Path(shutil.copytree(faults.GOLDEN / "plain", tmp_path / "index"))
    truth = faults.answers(root)
    pack = next((root / "packs").glob("unit-a-*"))
    data = pack.read_bytes()
    payload = data.index(b"SB\x02") + blob.HEADER_BYTES
    rewrite(pack, faults.Fault(pack, False, 8 * payload + 7).apply(data))
    assert faults.where_found(root, truth) == "use"
    monkeypatch.setattr(blob, "_verify", lambda view, identity: None)
    assert faults.where_found(root, truth) == "wrong answer"
    counts = Counter({("pack", "flips", "wrong answer"): 1, ("pack", "flips", "use"): 2})
    totals = {(case, metric): n for case, metric, n, _ in faults.summary(counts)}
    assert (totals["format", "flips"], totals["format", "flips_missed"]) == (3, 1)
    assert (totals["format-pack", "missed"], totals["format-pack", "found_by_use"]) == (1, 2)


def test_another_exception_counts_as_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(text: str) -> None:
        raise KeyError("not a named error")

    monkeypatch.setattr(json, "loads", crash)
    root = faults.GOLDEN / "plain"
    assert faults.where_found(root, []).startswith("crash: ")


@pytest.mark.parametrize("seed", range(4))
def test_mutated_files_with_right_checksums_end_in_a_format_error(
    tmp_path: Path, seed: int
) -> None:
    targets, rng = fuzz_targets.Targets(tmp_path), random.Random(seed)
    seeds = targets.seeds()
    assert {data[0] for data in seeds} == set(range(len(targets.all)))
    for data in [*seeds, *(fuzz_targets.mutated(rng, seeds) for _ in range(500))]:
        targets.run(data)


def test_sound_inputs_are_read_by_their_target(tmp_path: Path) -> None:
    targets = fuzz_targets.Targets(tmp_path)
    for data in targets.seeds():
        try:
            targets.all[data[0]](data[1:])
        except IntegrityError as error:  # a receipt of one unit under the name of the other
            assert "unit-b" in str(error)


def test_the_fuzzer_sees_what_is_no_format_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = fuzz_targets.Targets(tmp_path)
    monkeypatch.setattr(Pack, "open", lambda path, info: {info: path}["missing"])
    with pytest.raises(KeyError):
        targets.run(targets.seeds()[0])


def test_a_few_seconds_of_coverage_guided_fuzzing(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="pip install atheris")
    found = fuzz.fuzz(seconds=3, inputs=100_000, kept=tmp_path)
    assert found["fuzz_inputs"] > 100
    assert found["fuzz_crashes"] == found["fuzz_hangs"] == 0


def test_without_atheris_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install atheris"):
        fuzz.fuzz(1, 1)
