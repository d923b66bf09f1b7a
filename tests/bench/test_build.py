"""`sift-index bench build` on a model small enough for a test."""

import json

import pytest
import torch
from click.testing import CliRunner

from sift_index.bench.build import BuildOptions, BuildResult, bench_build
from sift_index.bench.build_model import ByteTokenizer, batch_lengths, loaded_model
from sift_index.bench.build_report import build_rows, case_name, missing_lengths, table_row
from sift_index.bench.build_steps import Steps
from sift_index.bench.clock import Clock
from sift_index.bench.measure import Effort
from sift_index.cli.main import cli
from sift_index.errors import UsageError
from sift_index.selection.extractor import Extractor
from sift_index.selection.policy import PaperPolicy, ProbePolicy
from tests.tiny import tiny_model_of

POLICY = ProbePolicy(probe_rows=64, probe_tokens=64, la_dense_tiles=1)
CPU = torch.device("cpu")
STEPS = ("rest", "ended", "local", "cross", "dense", "build")


def model():
    return loaded_model("tiny", tiny_model_of().config, CPU, torch.float32)


class Ticks:
    """A clock on which a run takes as long as it is told."""

    def __init__(self) -> None:
        self.seconds, self.runs = 0.0, 0

    def time(self, run, head_start_ms: float = 0.0) -> float:
        run()
        self.runs += 1
        self.seconds += 1.0
        return 10.0

    def clock(self) -> Clock:
        return Clock(self.time, self.time, lambda: self.seconds)


def result(ms: dict[str, float] | None = None) -> BuildResult:
    made = {"rest": 6.0, "dense": 8.0, "ended": 7.5, "local": 8.0, "cross": 9.0, "build": 10.0}
    return BuildResult(2048, 8, 16000, ms or made, 0.5, {16000: 32000, 32000: 64000})


def test_the_parts_add_up_to_the_build():
    found = result()
    assert found.throughput_vs_dense == 0.8
    assert found.tokens_per_second == 1_600_000
    split = {name: round(ms, 6) for name, ms in found.split.items()}
    assert split == {
        "rest": 6.0,
        "attention": 2.0,
        "skipped": -0.5,
        "statistics": 0.5,
        "probe_bank": 1.0,
        "packing": 1.0,
        "writing": 0.5,
    }
    assert sum(split.values()) - split["writing"] == found.ms["build"]


def test_rows_have_the_fixed_names():
    rows = {(row.case, row.metric): row for row in build_rows(result(), "len2k", CPU)}
    assert rows["len2k", "throughput_vs_dense"].value == 0.8
    assert rows["len2k", "peak_bytes_per_token"].value == 2.0
    assert rows["len2k", "peak_bytes_per_token_2x"].value == 2.0
    assert "packed dense prefill" in rows["len2k", "throughput_vs_dense"].baseline
    whole = result({"dense": 8.0, "build": 10.0})
    metrics = {row.metric for row in build_rows(whole, "len2k", CPU)}
    assert {"throughput_vs_dense", "dense_ms", "build_ms", "writing_ms"} <= metrics
    assert "attention_ms" not in metrics


def test_only_the_shape_of_the_projects_numbers_has_bare_names():
    lengths = (128, 512, 2048, 8192, 32768, 131024)
    names = [case_name(n, "llama-3.1-8b", None) for n in lengths]
    assert names == ["len128", "len512", "len2k", "len8k", "len32k", "len131024"]
    assert case_name(512, "llama-3.1-8b", 4) == "llama-3.1-8b-4-layers/len512"
    assert case_name(512, "smollm2-135m", None) == "smollm2-135m/len512"
    known = {("len512", "throughput_vs_dense"), ("len128", "seconds")}
    assert missing_lengths([128, 512], "llama-3.1-8b", None, known) == [128]


def test_documents_fill_a_batch_and_are_no_whole_tiles():
    lengths = batch_lengths(512, 16384, 10_000)
    assert (len(lengths), sum(lengths)) == (32, 16384)
    assert min(lengths) < 400 and max(lengths) > 620
    assert sum(n % 128 == 0 for n in lengths) < 4
    assert batch_lengths(32768, 16384, 131024) == [32768]
    assert batch_lengths(900, 1800, 1000) == [788, 1000]


def test_steps_share_one_batch_and_end_where_they_should():
    loaded = model()
    layers: list[int] = []
    for number, layer in enumerate(loaded.model.model.layers):
        layer.mlp.register_forward_hook(lambda *_, number=number: layers.append(number))
    steps = Steps(loaded, POLICY, [1, 2, 3])
    documents = [[5] * 300, [6] * 40]
    runs = steps.runs(documents)
    assert sorted(runs) == sorted(STEPS)
    passes = {}
    for name, run in runs.items():
        layers.clear()
        run()
        passes[name] = list(layers)
    # Of two layers the last is not scored, so an extraction ends within the first.
    ends = {name for name, seen in passes.items() if seen == []}
    assert ends == {"ended", "local", "cross", "build"}
    assert passes["dense"] == passes["rest"] == [0, 1]
    expected = [Extractor(loaded, POLICY, [1, 2, 3]).extract(ids) for ids in documents]
    found = steps.masks(documents)
    assert [row.la is not None for row in found] == [True, False]
    assert [row.key for row in found] == [row.key for row in expected]


def test_cases_begin_within_the_budget_only():
    ticks, found = Ticks(), list[BuildResult]()
    options = BuildOptions(
        POLICY, batch_tokens=300, prefix=5, effort=Effort(1, 2), split=False, budget=7.0
    )
    left = bench_build(options, [100, 150, 300], model(), ticks.clock(), found.append)
    # Two contenders in two turns, and one writing: five ticks a case.
    assert ([r.length for r in found], left, ticks.runs) == ([100, 150], [300], 10)
    assert [r.documents for r in found] == [3, 2]
    assert found[0].peak == {} and "rest" not in found[0].ms
    assert len(table_row(found[0])) == 3 + len(found[0].split) + 2


def test_a_policy_without_a_bank_is_refused():
    with pytest.raises(UsageError, match="rule 'paper'"):
        Steps(model(), PaperPolicy(), [1])


def test_the_tokenizer_has_a_token_a_byte():
    assert ByteTokenizer()("aé", add_special_tokens=False).input_ids == [97, 195, 169]


def run(tmp_path, *more: str):
    folder = tmp_path / "shape"
    tiny_model_of().config.save_pretrained(folder)
    policy = tmp_path / "small.yaml"
    policy.write_text("rule: probe\nprobe_rows: 64\nprobe_tokens: 64\n")
    arguments = ["bench", "build", "--model-shape", str(folder), "--device", "cpu"]
    arguments += ["--policy", str(policy), "--batch-tokens", "256", "--repeats", "1", *more]
    return CliRunner().invoke(cli, arguments)


def test_the_command_keeps_results_case_by_case(tmp_path):
    results = tmp_path / "build.json"
    more = ("--results", str(results), "--output", "json")
    done = run(tmp_path, "--documents", "64", *more)
    assert done.exit_code == 0, done.output
    (case,) = json.loads(done.stdout)["cases"]
    assert case["case"] == "shape/len64" and case["documents"] == 4
    assert set(case["ms"]) == set(STEPS)
    done = run(tmp_path, "--documents", "64,128", "--resume", *more)
    assert [case["case"] for case in json.loads(done.stdout)["cases"]] == ["shape/len128"]
    rows = json.loads(results.read_text())["rows"]
    assert {row["case"] for row in rows} == {"shape/len64", "shape/len128"}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--documents", "0"], "lengths of at least 1 token"),
        (["--documents", ""], "lengths of at least 1 token"),
        (["--resume"], "expected --results with --resume"),
        (["--device", "abacus"], "expected auto, cpu or cuda"),
        (["--layers", "99"], "--layers"),
    ],
)
def test_wrong_usage_is_said_before_anything_runs(tmp_path, more, message):
    done = run(tmp_path, *more)
    assert done.exit_code == 2
    assert message in done.output
