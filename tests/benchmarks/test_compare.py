"""The comparison of two score files pairs prompts and keeps what was measured of both."""

import json
import sys

import numpy as np
import pytest

from benchmarks.compare import comparison, main, paired
from sift_index.evaluation.metrics import bootstrap


def score(kl: float, density: float = 0.5) -> dict[str, float]:
    return {"kl": kl, "top1": 1 - kl, "density": density}


def write(path, scores):
    """Write a file of scores: method by metric of each (data set, question)."""
    lines = [{"dataset": d, "id": n, "scores": found} for (d, n), found in scores.items()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def files(tmp_path):
    """Two files of which three questions are shared; in another order."""
    first = {("a", str(n)): {"x": score(0.1 * n), "y": score(9)} for n in (4, 3, 2, 1)}
    second = {("a", str(n)): {"z": score(0.05 * n * n, 0.25)} for n in (1, 2, 3)}
    second["b", "4"] = {"z": score(9)}  # another data set's question
    return write(tmp_path / "first", first), write(tmp_path / "second", second)


def by_metric(values):
    return {metric: value for _, metric, value, _ in values}


def test_questions_are_paired_by_data_set_and_id(files):
    first, second = paired(*files)
    assert [one["x"]["kl"] for one in first] == pytest.approx([0.1, 0.2, 0.3])
    assert [one["z"]["kl"] for one in second] == pytest.approx([0.05, 0.2, 0.45])


def test_files_without_a_common_question_are_refused(files, tmp_path):
    with pytest.raises(SystemExit, match="share no question"):
        paired(files[0], write(tmp_path / "other", {("b", "1"): {"z": score(1)}}))


def test_changes_and_ratios_are_those_of_the_same_prompts(files):
    first, second = paired(*files)
    found = by_metric(comparison("case", first, "x", second, "z"))
    change = bootstrap([0.1 - 0.05, 0.2 - 0.2, 0.3 - 0.45])
    assert (found["kl"], found["kl_other"]) == pytest.approx((0.2, 0.7 / 3))
    for end, value in (("", change.mean), ("_lo", change.low), ("_hi", change.high)):
        assert found[f"kl_change{end}"] == pytest.approx(value)
    assert found["density_change"] == found["density_change_hi"] == 0.25
    assert found["kl_ratio"] == pytest.approx(0.6 / 0.7)
    # Means are divided, not prompts: three times the first prompt has ratio 2, the last 2 / 3.
    assert (found["kl_ratio_lo"], found["kl_ratio_hi"]) == pytest.approx((2 / 3, 2), abs=0.35)
    assert found["kl_ratio_lo"] < found["kl_ratio"] < found["kl_ratio_hi"]
    assert "kl_ratio_at_density" not in found


def test_levels_are_compared_at_the_other_methods_density():
    first = [
        {"p@1": score(0.01 * n, 0.4), "p@2": score(0.04 * n, 0.2), "q@1": score(9, 0.3)}
        for n in (1, 2)
    ]
    second = [{"z": score(0.01 * n, 0.3)} for n in (1, 2)]
    found = by_metric(comparison("case", first, "p@2", second, "z"))
    assert found["kl_ratio"] == pytest.approx(4)
    # Halfway between 1 and 4 times, on a logarithmic scale, in every resample.
    ends = [found[f"kl_ratio_at_density{end}"] for end in ("", "_lo", "_hi")]
    assert ends == pytest.approx([2, 2, 2])


def test_the_rows_go_into_the_results_file(files, tmp_path, monkeypatch):
    results = tmp_path / "pairs.json"
    monkeypatch.setattr(
        sys, "argv", ["c", "m/a/x against z", files[0], "x", files[1], "z", results]
    )
    monkeypatch.setattr(sys, "argv", [str(part) for part in sys.argv])
    main()
    content = json.loads(results.read_text())
    assert content["bench"] == "pairs"
    found = {row["metric"]: row for row in content["rows"]}
    assert found["prompts"]["value"] == 3.0
    assert np.isclose(found["kl_change"]["value"], -0.1 / 3)
    assert {row["case"] for row in content["rows"]} == {"m/a/x against z"}
    assert found["kl"]["baseline"] == "z, same questions"
