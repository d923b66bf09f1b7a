"""`sift-index eval --serve-prefix`: what is reported, joined and refused."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sift_index.cli.main import cli
from sift_index.prompts import PromptWriter
from tests.plans import layout_of, write_index

TEXTS = {f"{n}.txt": f"Mill {n} had {n} wheels. " * (5 + n) for n in range(2)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_model) -> Path:
    """A corpus, one question, and an index of the corpus with random bits."""
    found = tmp_path_factory.mktemp("serve_prefix")
    (found / "corpus").mkdir()
    for name, text in TEXTS.items():
        (found / "corpus" / name).write_text(text)
    entry = {"id": 1, "question": "Which?", "answers": ["two"], "documents": [*TEXTS]}
    (found / "mills.jsonl").write_text(json.dumps(entry))
    writer = PromptWriter(tiny_model.tokenizer, tiny_model.prompt)
    documents = {name: [writer.document(text)] for name, text in TEXTS.items()}
    write_index(found / "index", tiny_model, layout_of(tiny_model.model), documents)
    return found


@pytest.fixture
def call(folder, tiny_model_dir):
    """Run `eval` on the index with one question and no decoding."""
    fixed = ["eval", folder / "index", "--model", tiny_model_dir, "--methods", "dense,sift"]
    fixed += ["--questions", folder / "mills.jsonl", "--corpus", folder / "corpus"]
    fixed += ["--no-generate", "--no-recall", "--output", "json"]

    def run(*options: object) -> Result:
        return CliRunner().invoke(cli, [str(part) for part in [*fixed, *options]])

    return run


def test_results_are_cases_of_their_own(call, tmp_path):
    results = tmp_path / "quality.json"
    for options in ((), ("--serve-prefix", "Other: ")):
        result = call("--results", results, *options)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["hits"] == 2
        assert ("not the prefix the index was built behind" in result.stderr) == bool(options)
    rows = json.loads(results.read_text())["rows"]
    cases = {row["case"].partition("/mills")[2] for row in rows}
    assert cases == {
        f"{variant}/{method}" for variant in ("", " (other prefix)") for method in ("dense", "sift")
    }


def test_scores_of_another_prefix_are_not_joined(call, tmp_path):
    scores = tmp_path / "scores.jsonl"
    first = call("--scores", scores, "--serve-prefix", "Other: ")
    assert first.exit_code == 0, first.output
    again = call("--scores", scores, "--serve-prefix", "Other: ")
    assert again.exit_code == 0 and len(scores.read_text().splitlines()) == 1
    for options in ((), ("--serve-prefix", "Another: ")):
        result = call("--scores", scores, *options)
        assert result.exit_code == 2
        assert "serve prefix 'Other: '" in result.output and "give another file" in result.output


def test_strict_refuses_another_prefix(call):
    assert call("--strict").exit_code == 0
    result = call("--strict", "--serve-prefix", "Other: ")
    assert result.exit_code == 5
    assert "strict: the tokens before the first document" in result.output


def test_the_invariance_report_has_one_prefix(call):
    result = call("--report", "invariance", "--serve-prefix", "Other: ")
    assert result.exit_code == 2
    assert "expected --serve-prefix with --report quality" in result.output
