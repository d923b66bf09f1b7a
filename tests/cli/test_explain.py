"""`sift-index explain` as a user runs it."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sift_index.cli.main import cli
from sift_index.prompts import PromptWriter
from tests.plans import layout_of, write_index

TEXTS = {name: f"Document {name} tells of a mill. " * 12 for name in ("a.txt", "b.txt", "c.txt")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_model) -> Path:
    """An index of three files, of which one was changed afterwards, and a file it lacks."""
    found = tmp_path_factory.mktemp("explain")
    writer = PromptWriter(tiny_model.tokenizer, tiny_model.prompt)
    documents = {name: [writer.document(text)] for name, text in TEXTS.items()}
    write_index(found / "index", tiny_model, layout_of(tiny_model.model), documents)
    (found / "corpus").mkdir()
    for name, text in {**TEXTS, "b.txt": "Other words.", "new.txt": "Nobody knows me."}.items():
        (found / "corpus" / name).write_text(text)
    return found


def call(folder: Path, model: Path, *names: str) -> Result:
    files = [str(folder / "corpus" / name) for name in names if not name.startswith("-")]
    options = [name for name in names if name.startswith("-")]
    return CliRunner().invoke(
        cli, ["explain", str(folder / "index"), *files, "--model", str(model), *options]
    )


def test_each_document_with_its_reason(folder, tiny_model_dir):
    result = call(folder, tiny_model_dir, "a.txt", "new.txt", "b.txt", "c.txt", "--output=json")
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    reasons = [one["reason"] for one in values["segments"]]
    assert reasons == [
        "declared_glue",
        "indexed",
        "not_indexed",
        "changed",
        "indexed",
        "declared_glue",
    ]
    assert (values["hits"], values["misses"]) == (2, 2)
    assert len(values["layers"]) == 2
    assert values["most"] == pytest.approx(1 / values["total"]["density"])


def test_a_document_above_the_longest_is_several_pieces(folder, tiny_model_dir, tmp_path):
    long = tmp_path / "long.txt"
    long.write_text("Much of it. " * 600)
    names = [str(folder / "corpus" / "a.txt"), str(long)]
    command = ["explain", str(folder / "index"), *names, "--model", str(tiny_model_dir)]
    values = json.loads(CliRunner().invoke(cli, [*command, "--output=json"]).stdout)
    found = [one["document"] for one in values["segments"]]
    pieces = found.count(str(long))
    assert found == ["prefix", names[0], *[names[1]] * pieces, "question"] and pieces > 1
    text = " ".join(CliRunner().invoke(cli, command).output.split())
    assert f"of {pieces})" in text and f"1 pieces of documents found, {pieces} not" in text


def test_text_names_the_files(folder, tiny_model_dir):
    result = call(folder, tiny_model_dir, "a.txt", "b.txt")
    assert result.exit_code == 0, result.output
    flat = " ".join(result.output.split())
    assert "b.txt" in flat and "changed: the index holds other" in flat
    assert "1 documents found, 1 not; at most" in flat


def test_a_model_that_does_not_fit_is_said(folder, tiny_model_dir, monkeypatch):
    monkeypatch.setattr("sift_index.models.digests.tokenizer_digest", lambda tokenizer: "0")
    result = call(folder, tiny_model_dir, "a.txt")
    assert result.exit_code == 0 and "another tokenizer than the index" in result.stderr
    unnamed = CliRunner().invoke(
        cli, ["explain", str(folder / "index"), str(folder / "corpus" / "a.txt")]
    )
    assert unnamed.exit_code == 2 and "give --model" in unnamed.stderr


def test_wrong_usage(folder, tiny_model_dir):
    missing = call(folder, tiny_model_dir, "nowhere.txt")
    assert missing.exit_code == 2 and "nowhere.txt cannot be read" in missing.output
    level = call(folder, tiny_model_dir, "a.txt", "--level=2")
    assert level.exit_code == 2 and "expected a level of 1 to 1" in level.output
    assert CliRunner().invoke(cli, ["explain", str(folder / "index")]).exit_code == 2
    version = call(folder, tiny_model_dir, "a.txt", "--version=7")
    assert version.exit_code == 4 and "version 7" in version.stderr


def test_older_versions(folder, tiny_model_dir, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    deleted = CliRunner().invoke(cli, ["delete", str(tmp_path / "index"), "a.txt"])
    assert deleted.exit_code == 0, deleted.output
    newest = call(tmp_path, tiny_model_dir, "a.txt", "--output=json")
    older = call(tmp_path, tiny_model_dir, "a.txt", "--version=1", "--output=json")
    assert (json.loads(newest.stdout)["hits"], json.loads(older.stdout)["hits"]) == (0, 1)


def test_quality_and_crossover(folder, tiny_model_dir, tmp_path):
    table = tmp_path / "table.yaml"
    table.write_text("device: x\nmodel_shape: y\nrows: [{tokens: 99999, max_density: 1}]\n")
    result = call(
        folder, tiny_model_dir, "a.txt", "--quality=fast", f"--crossover={table}", "--output=json"
    )
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    assert values["dense"] and values["level"] == 1
    assert "'fast' is the same as 'best'" in values["notes"][0]
    assert values["notes"][1].startswith("runs dense: below crossover")
    both = call(folder, tiny_model_dir, "a.txt", "--quality=fast", "--level=2")
    assert both.exit_code == 2 and "level 2 and quality 'fast'" in both.output
