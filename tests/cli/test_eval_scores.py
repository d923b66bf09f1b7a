"""`sift-index eval --scores` and `--shard`: runs that stop, go on and are joined."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sift_index.cli.main import cli

TEXTS = [f"Mill {n} had {n} wheels. " * (4 + n) for n in range(3)]
POLICY = "rule: probe\nwindow: 1\nprobe_source: {probes}\nca_thresholds: [{threshold}]\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    found = tmp_path_factory.mktemp("scores")
    entries = [
        {"id": n, "question": f"Which {n}?", "answers": ["two"], "documents": documents}
        for n in range(3)
        for documents in [[{"text": text} for text in TEXTS]]
    ]
    (found / "mills.jsonl").write_text("\n".join(json.dumps(entry) for entry in entries))
    (found / "probe.txt").write_text("A ferry crosses the sound with bread for the mill. " * 5)
    (found / "mine.yaml").write_text(POLICY.format(probes="probe.txt", threshold=0.01))
    return found


@pytest.fixture
def call(folder, tiny_model_dir):
    def run(*options: object) -> Result:
        fixed = ["eval", "--model", tiny_model_dir, "--questions", folder / "mills.jsonl"]
        fixed += ["--methods", f"dense,no-cross,policy:{folder / 'mine.yaml'}"]
        fixed += ["--no-generate", "--output", "json"]
        return CliRunner().invoke(cli, [str(part) for part in [*fixed, *options]])

    return run


def test_shards_joined_are_the_whole(call, tmp_path):
    whole = call()
    assert whole.exit_code == 0, whole.output
    for shard in ("1/2", "2/2"):
        assert call("--scores", tmp_path / shard[0], "--shard", shard).exit_code == 0
    joined = tmp_path / "joined"
    joined.write_bytes((tmp_path / "1").read_bytes() + (tmp_path / "2").read_bytes())
    before = joined.read_bytes()
    result = call("--scores", joined)
    assert joined.read_bytes() == before  # nothing ran again
    assert json.loads(result.stdout) == json.loads(whole.stdout)


def test_a_stopped_run_goes_on(call, tmp_path):
    scores = tmp_path / "scores"
    assert call("--scores", scores).exit_code == 0
    lines = scores.read_bytes().splitlines(keepends=True)
    scores.write_bytes(lines[0] + lines[1][:50])
    assert call("--scores", scores).exit_code == 0
    assert scores.read_bytes().splitlines(keepends=True) == lines


def test_what_is_scored_is_reported_without_running_the_rest(call, tmp_path):
    scores = tmp_path / "scores"
    assert call("--scores", scores, "--scored-only").exit_code == 2
    assert call("--scores", scores, "--shard", "2/3").exit_code == 0
    before = scores.read_bytes()
    result = call("--scores", scores, "--scored-only")
    assert "2 questions left out: not scored" in result.stderr
    assert [one["id"] for one in json.loads(result.stdout)["questions"]] == ["1"]
    assert scores.read_bytes() == before


def test_an_edited_policy_runs_again(call, folder, tmp_path):
    scores = tmp_path / "scores"
    before = json.loads(call("--scores", scores).stdout)["methods"]
    old = (folder / "mine.yaml").read_text()
    try:
        (folder / "mine.yaml").write_text(old.replace("0.01", "0.2"))
        after = json.loads(call("--scores", scores).stdout)["methods"]
    finally:
        (folder / "mine.yaml").write_text(old)
    assert after["policy:mine"]["ca_density"] != before["policy:mine"]["ca_density"]
    assert after["no-cross"] == before["no-cross"]


def test_an_edited_question_runs_again(call, folder, tmp_path):
    scores = tmp_path / "scores"
    first = json.loads(call("--scores", scores).stdout)
    old = (folder / "mills.jsonl").read_text()
    try:
        (folder / "mills.jsonl").write_text(old.replace("Which 1?", "Which mill was the first?"))
        again = json.loads(call("--scores", scores).stdout)
    finally:
        (folder / "mills.jsonl").write_text(old)
    changed = [a != b for a, b in zip(first["questions"], again["questions"], strict=True)]
    assert changed == [False, True, False]


def test_fewer_methods_go_on_with_the_same_scores(call, tmp_path):
    scores = tmp_path / "scores"
    assert call("--scores", scores).exit_code == 0
    before = scores.read_bytes()
    result = call("--scores", scores, "--methods", "dense,no-cross")
    assert result.exit_code == 0, result.output
    assert scores.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scored-only"], "expected --scores with --scored-only"),
        (["--serve-prefix", " "], "expected a --serve-prefix with text"),
        (["--alpha", "nan"], "expected --alpha as a probability"),
        (["--methods", "dense", "--plot", "x.png"], "expected a sparse method to plot"),
        (["--results", "/proc/results.json"], "cannot be written"),
    ],
)
def test_options_that_cannot_work_are_refused_before_anything_runs(call, options, message):
    result = call(*options)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2"])
def test_a_bad_shard_is_refused(call, shard):
    result = call(f"--shard={shard}")
    assert result.exit_code == 2
    assert f"expected --shard I/N with I of 1 to N, found '{shard}'" in result.output
