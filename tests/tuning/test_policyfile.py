"""Policy files: written whole, read back equal, refused before work where they cannot be."""

import os

import pytest

from sift_index.errors import UsageError
from sift_index.selection.policy import ProbePolicy, read_policy
from sift_index.tuning.policyfile import policy_text, require_writable, write_policy
from tests.plans import QUALITY

POLICY = ProbePolicy(
    ca_thresholds=(1.23e-05,), head_weights=((0.000846, 12.5), (1.0, 0.1)), window=4
)


def test_a_file_reads_back_as_what_was_written(tmp_path):
    path = tmp_path / "new" / "policy.yaml"
    write_policy(path, POLICY, [QUALITY, {**QUALITY, "model": "übung: #1"}], ["made by hand"])
    found = read_policy(str(path))
    assert found.policy == POLICY
    assert found.quality == (QUALITY, {**QUALITY, "model": "übung: #1"})
    assert [p.name for p in path.parent.iterdir()] == ["policy.yaml"]


def test_comments_stay_comments_and_lines_short():
    text = policy_text(POLICY, [], ["data: a\nrule: paper", "word " * 60])
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert comments[0] == "# data: a rule: paper"
    assert len(comments) > 3 and max(map(len, text.splitlines())) <= 100
    assert text.count("rule: paper") == 1


def test_a_policy_without_head_weights_does_not_mention_them():
    assert "head_weights" not in policy_text(ProbePolicy(), [], [])
    assert "- [0.000846, 12.5]\n" in policy_text(POLICY, [], [])


def test_an_existing_file_needs_force(tmp_path):
    path = tmp_path / "policy.yaml"
    require_writable(path)
    path.write_text("mine")
    with pytest.raises(UsageError, match="--force"):
        require_writable(path)
    require_writable(path, force=True)
    assert path.read_text() == "mine"


def test_places_that_no_file_can_have_are_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file" / "policy.yaml"):
        with pytest.raises(UsageError, match="policy"):
            require_writable(path, force=True)
    with pytest.raises(UsageError, match="cannot be written"):
        require_writable(type(tmp_path)("/proc/policy.yaml"))


def test_looking_leaves_nothing_behind(tmp_path):
    require_writable(tmp_path / "a" / "b" / "policy.yaml")
    assert not list(tmp_path.iterdir())


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "policy.yaml"
    path.write_text("mine")

    def fail(*arguments, **options):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(type(path), "replace", fail)
    with pytest.raises(UsageError, match="No space left"):
        write_policy(path, POLICY, [], [])
    assert path.read_text() == "mine" and [p.name for p in tmp_path.iterdir()] == ["policy.yaml"]
