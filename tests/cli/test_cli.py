"""The command line as a user runs it: output, JSON, errors and exit codes."""

import io
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from sift_index.cli.inspect import show_values
from sift_index.cli.main import cli
from sift_index.errors import BuildInterrupted

COMMANDS = (
    "build",
    "inspect",
    "verify",
    "versions",
    "delete",
    "compact",
    "gc",
    "export",
    "import",
    "explain",
    "eval",
    "tune",
    "bench",
    "demo",
    "doctor",
    "models",
)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def as_json(result: Result):
    return json.loads(result.stdout)


def write_corpus(folder: Path) -> Path:
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.txt").write_text(f"Document {number}. " * (10 + 20 * number))
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory, tiny_model_dir, local_ray) -> tuple[Path, Path]:
    """A corpus and its index, built through the command line."""
    folder = tmp_path_factory.mktemp("cli")
    corpus, index = write_corpus(folder / "corpus"), folder / "index"
    result = call("build", corpus, "--model", tiny_model_dir, "--index", index, "--output", "json")
    assert result.exit_code == 0, result.output
    summary = as_json(result)
    assert (summary["documents"], summary["indexed"], summary["version"]) == (4, 4, 1)
    return corpus, index


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command):
    result = call(command, "--help")
    assert result.exit_code == 0
    assert "Example:" in result.stdout and f"sift-index {command}" in result.stdout


def test_exit_codes_are_documented():
    result = call("--help")
    text = " ".join(result.stdout.split())
    for code in (
        "0 done",
        "1 failed",
        "2 wrong usage",
        "3 built",
        "4 the index",
        "5 the index",
        "130",
    ):
        assert code in text


def test_build_again_has_nothing_to_do(built, tiny_model_dir):
    corpus, index = built
    result = call("build", corpus, "--model", tiny_model_dir, "--index", index)
    assert result.exit_code == 0
    assert "4 indexed" in result.stdout and "nothing new to publish" in result.stdout


def test_a_failed_document_gives_exit_code_3(built, tiny_model_dir, tmp_path):
    corpus, index = built
    copies = tmp_path / "corpus", tmp_path / "index"
    shutil.copytree(corpus, copies[0])
    shutil.copytree(index, copies[1])
    (copies[0] / "bad.txt").write_bytes(b"caf\xe9")
    result = call("build", copies[0], "--model", tiny_model_dir, "--index", copies[1])
    assert result.exit_code == 3
    assert "bad.txt" in result.stderr and "UTF-8" in result.stderr
    shown = as_json(call("inspect", copies[1], "--output", "json"))
    assert [failure["source"] for failure in shown["failed"]] == ["bad.txt"]


def test_names_in_the_summary_are_printed_as_they_are(built, tiny_model_dir, tmp_path):
    corpus, index = built
    shutil.copytree(corpus, tmp_path / "corpus")
    (tmp_path / "corpus" / "[").mkdir()
    (tmp_path / "corpus" / "[" / "bold]x.jpg").write_bytes(b"\xff")
    result = call("build", tmp_path / "corpus", "--model", tiny_model_dir, "--index", index)
    assert result.exit_code == 0, result.output
    assert "1 files, such as [/bold]x.jpg" in result.stdout
    assert all(line[:12].strip() for line in result.stdout.splitlines())  # none is wrapped


def test_another_policy_on_append_is_a_mismatch(built, tiny_model_dir):
    corpus, index = built
    result = call("build", corpus, "--model", tiny_model_dir, "--index", index, "--policy", "paper")
    assert result.exit_code == 5
    assert "build.policy.page_size: index has 32, this build has 128" in result.stderr


def test_inspect_shows_the_index_and_a_document(built):
    _, index = built
    values = as_json(call("inspect", index, "--output", "json"))
    assert values["documents"] == values["keys"] == 4
    assert values["policy"]["rule"] == "probe"
    assert "documents: 4" in call("inspect", index).stdout
    one = as_json(call("inspect", index, "--document", "2.txt", "--output", "json"))
    assert len(one["pieces"]) == 1 and 0 <= one["pieces"][0]["ca_pages_on"] <= 1
    assert call("inspect", index, "--document", "nope").exit_code == 2


def test_verify_finds_a_flipped_byte(built, tmp_path):
    _, index = built
    assert call("verify", index).exit_code == 0
    copy = tmp_path / "index"
    shutil.copytree(index, copy)
    pack = next((copy / "packs").iterdir())
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    result = call("verify", copy, "--output", "json")
    assert result.exit_code == 4
    values = as_json(result)
    assert not values["ok"] and "IntegrityError" in values["problems"][0]


@pytest.mark.parametrize("command", [("inspect",), ("verify",), ("eval",)])
def test_a_folder_without_an_index_is_said_to_be_one(command, tmp_path):
    result = call(*command, tmp_path)
    assert result.exit_code == 4
    assert str(tmp_path) in result.stderr


def test_errors_are_json_too(tmp_path):
    result = call("inspect", tmp_path, "--output", "json")
    assert as_json(result)["error"]["type"] == "IndexNotFoundError"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--model", "no-such-preset"), 2, "llama-3.1-8b"),
        (("--model", "smollm2-135m", "--policy", "nope"), 2, "probe"),
        (("--model", "smollm2-135m", "--unit-tokens", "0"), 2, "unit_tokens"),
        (("--model", "smollm2-135m", "--unit-timeout", "-1"), 2, "unit_timeout"),
        (("--model", "smollm2-135m", "--max-failures", "-1"), 2, "max_failures"),
        ((), 2, "--model"),
    ],
)
def test_wrong_usage(arguments, code, message, tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    result = call("build", corpus, "--index", tmp_path / "index", *arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert not (tmp_path / "index").exists()


def test_eval_compares_methods_and_writes_results(built, tiny_model_dir, tmp_path):
    corpus, index = built
    questions = tmp_path / "questions.jsonl"
    entry = {
        "id": 1,
        "question": "Which?",
        "answers": ["Document"],
        "documents": ["1.txt", "3.txt"],
    }
    questions.write_text(json.dumps(entry) + "\n")
    results = tmp_path / "results" / "quality.json"
    arguments = ["--model", tiny_model_dir, "--questions", questions, "--corpus", corpus]
    result = call("eval", index, *arguments, "--results", results, "--output", "json")
    assert result.exit_code == 0, result.output
    values = as_json(result)
    assert (values["hits"], values["misses"]) == (2, 0)
    assert set(values["methods"]) == {"dense", "sift", "paper", "no-cross"}
    assert values["methods"]["dense"]["kl"]["mean"] == 0.0
    rows = json.loads(results.read_text())["rows"]
    metrics = {row["metric"] for row in rows if row["case"].endswith("questions/sift")}
    assert {"kl", "kl_lo", "kl_hi", "ca_density", "top1", "nll", "prompts"} <= metrics


def test_eval_refuses_an_unknown_method(built, tiny_model_dir):
    result = call("eval", built[1], "--model", tiny_model_dir, "--methods", "dense,magic")
    assert result.exit_code == 2 and "magic" in result.stderr


def test_models_and_doctor_list_what_is_here():
    assert "llama-3.1-8b" in call("models").stdout
    names = {preset["name"] for preset in as_json(call("models", "--output", "json"))["presets"]}
    assert names == {"smollm2-135m", "llama-3.1-8b", "qwen3-235b-a22b", "minimax-m2.5"}
    checks = as_json(call("doctor", "--output", "json"))["checks"]
    assert {"torch", "ray", "pyarrow", "gpu", "memory"} <= {check["name"] for check in checks}


def test_a_build_refuses_a_version_whose_pack_was_cut(built, tiny_model_dir, tmp_path):
    corpus, index = built
    copy = tmp_path / "index"
    shutil.copytree(index, copy)
    pack = next((copy / "packs").iterdir())
    pack.write_bytes(pack.read_bytes()[:500])
    arguments = ["build", corpus, "--model", tiny_model_dir, "--index", copy]
    result = call(*arguments)
    assert result.exit_code == 4
    assert (
        pack.name in result.stderr and "delete the index folder and build it again" in result.stderr
    )
    for receipt in (copy / "commits").iterdir():
        receipt.unlink()
    assert call(*arguments).exit_code == 4, "a lost receipt must not hide the damage"
    shutil.rmtree(copy)
    assert call(*arguments).exit_code == 0


def test_verify_misses_the_receipt_of_a_published_unit(built, tmp_path):
    copy = tmp_path / "index"
    shutil.copytree(built[1], copy)
    next((copy / "commits").iterdir()).unlink()
    assert call("verify", copy).exit_code == 4


def test_eval_says_when_documents_are_not_in_the_index(built, tiny_model_dir, tmp_path):
    questions = tmp_path / "questions.jsonl"
    entry = {"id": 1, "question": "Which?", "answers": ["a"], "documents": [{"text": "unknown"}]}
    questions.write_text(json.dumps(entry))
    arguments = ["--model", tiny_model_dir, "--questions", questions, "--methods", "dense, sift"]
    result = call("eval", built[1], *arguments)
    assert result.exit_code == 0, result.output
    assert "0 documents found in the index, 1 not" in " ".join(result.stdout.split())
    assert "1 of 1 documents are not in the index" in result.stderr


def test_a_results_path_that_cannot_be_used_is_refused_before_the_run(built, tmp_path):
    result = call("eval", built[1], "--model", "no-such-model", "--results", tmp_path)
    assert result.exit_code == 2 and "is no results file" in result.stderr


def test_nothing_indexed_is_a_failure(tiny_model_dir, local_ray, tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "empty.txt").write_text(" \n")
    result = call("build", corpus, "--model", tiny_model_dir, "--index", tmp_path / "index")
    assert result.exit_code == 1
    assert "1 empty" in result.stdout and "no document could be indexed" in result.stderr


def test_more_failures_than_allowed_are_an_error_and_written_down(
    tiny_model_dir, local_ray, tmp_path
):
    corpus, index = write_corpus(tmp_path / "corpus"), tmp_path / "index"
    for number in range(2):
        (corpus / f"broken{number}.txt").write_bytes(b"\xff\xfe\xff")
    arguments = ["build", corpus, "--model", tiny_model_dir, "--index", index]
    result = call(*arguments, "--max-failures", 1, "--output", "json")
    assert result.exit_code == 1
    assert as_json(result)["error"]["type"] == "TooManyFailuresError"
    assert "broken0.txt" in result.stderr and "--max-failures" in result.stderr
    assert len([*(index / "failed").iterdir()]) == 2 and not [*index.glob("manifest-*")]


@pytest.mark.parametrize(
    ("stop", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted; run the same command"),
        (BuildInterrupted("terminated; 3 units wait", 143), 143, "terminated; 3 units wait"),
    ],
)
def test_a_stopped_build_has_its_own_exit_code(stop, code, message, monkeypatch, tmp_path):
    def stopped(config):
        raise stop

    monkeypatch.setattr("sift_index.pipelines.build.run_build", stopped)
    arguments = ["build", write_corpus(tmp_path / "corpus"), "--model", "smollm2-135m"]
    result = call(*arguments, "--index", tmp_path / "index")
    assert result.exit_code == code and f"error: {message}" in result.stderr


def test_an_index_path_that_is_a_file_is_refused(built, tiny_model_dir, tmp_path):
    (tmp_path / "index").write_text("mine")
    result = call("build", built[0], "--model", tiny_model_dir, "--index", tmp_path / "index")
    assert result.exit_code == 2
    assert (tmp_path / "index").read_text() == "mine"


def test_inspect_shows_tables_of_numbers_by_their_size():
    values = {"policy": {"head_weights": [[1.0, 2.0, 3.0]] * 30, "window": 1, "levels": [1]}}
    shown = io.StringIO()
    show_values(Console(width=200, file=shown), values)
    assert shown.getvalue() == "policy: head_weights=30 x 3 numbers, window=1, levels=[1]\n"
