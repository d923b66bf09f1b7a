"""`sift-index eval` as a user runs it: with and without an index, both reports, wrong usage."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sift_index.cli.main import cli
from sift_index.evaluation.report import METRICS
from sift_index.prompts import PromptWriter
from tests.plans import layout_of, write_index
from tests.selection.observed import write_probes

PNG = b"\x89PNG\r\n\x1a\n"
TEXTS = [f"Document {n} tells of mill {n}. " * (5 + 3 * n) for n in range(4)]


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["eval", *(str(argument) for argument in arguments)])


def values_of(result: Result):
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def flat(text: str) -> str:
    return " ".join(text.split())


def write_questions(path: Path, *entries: tuple[str, list[int]], source: str = "") -> Path:
    """Write questions with these ids over TEXTS of these numbers."""
    lines = [
        {
            "id": name,
            "question": "Which mill?",
            "answers": ["mill"],
            "documents": [{"text": TEXTS[number]} for number in numbers],
            "source": source,
        }
        for name, numbers in entries
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_model) -> Path:
    """An index of all TEXTS, two files of questions, and a policy that is quick to prepare."""
    found = tmp_path_factory.mktemp("eval")
    writer = PromptWriter(tiny_model.tokenizer, tiny_model.prompt)
    documents = {text[:11]: [writer.document(text)] for text in TEXTS[:3]}
    write_index(found / "index", tiny_model, layout_of(tiny_model.model), documents)
    write_questions(found / "short.jsonl", ("a", [0, 1]), ("b", [1, 0]), ("c", [0, 2]))
    write_questions(found / "long.jsonl", ("a", [0, 1, 2]), ("d", [2, 1, 0]), source="mills")
    write_probes(found / "probes")
    (found / "mine.yaml").write_text(
        "rule: probe\nprobe_source: probes\nprobe_tokens: 200\nprobe_rows: 200\n"
        "ca_thresholds: [0.05]\n"
    )
    return found


@pytest.fixture
def quick(folder, tiny_model_dir) -> list[object]:
    """Arguments of an evaluation without an index and of little work."""
    return [
        *("--model", tiny_model_dir, "--policy", folder / "mine.yaml"),
        *("--questions", folder / "short.jsonl", "--methods", "dense,sift"),
    ]


# --- with and without an index -----------------------------------------------------------------


def test_without_an_index_documents_are_extracted(quick):
    result = call(*quick, "--output", "json")
    values = values_of(result)
    assert list(values["methods"]) == ["dense", "sift"]
    assert 0 < values["methods"]["sift"]["ca_density"]["mean"] < 1
    assert (values["hits"], values["misses"]) == (0, 0)
    assert [question["id"] for question in values["questions"]] == ["a", "b", "c"]
    assert "question 3/3" in result.stderr
    shown = call(*quick)
    assert "3 prompts of" in shown.stdout and "in the index" not in shown.stdout
    assert "warning" not in shown.stderr


def test_with_an_index_its_masks_are_served(folder, tiny_model_dir):
    arguments = [folder / "index", "--model", tiny_model_dir, "--methods", "dense,sift"]
    values = values_of(
        call(*arguments, "--questions", folder / "long.jsonl", "--output", "json", "--policy", "no")
    )
    assert (values["hits"], values["misses"]) == (6, 0)
    shown = call(*arguments, "--questions", folder / "long.jsonl")
    assert "6 documents found in the index, 0 not" in flat(shown.stdout)


def test_neither_an_index_nor_a_model_is_refused():
    result = call()
    assert result.exit_code == 2
    assert "expected an INDEX, or --model to evaluate without one; found neither" in result.stderr


def test_an_index_of_a_model_in_a_folder_needs_the_model(folder):
    result = call(folder / "index")
    assert result.exit_code == 2
    assert "the index names no model that can be loaded; give --model" in result.stderr


# --- which questions ---------------------------------------------------------------------------


def test_several_files_are_reported_together_and_apart(folder, quick):
    more = [*quick, "--questions", folder / "long.jsonl"]
    values = values_of(call(*more, "--output", "json"))
    assert values["prompts"] == 5
    assert set(values["parts"]) == {
        *("dataset: long", "dataset: short", "source: mills", "source: unnamed")
    }
    assert values["parts"]["dataset: long"]["prompts"] == 2
    shown = flat(call(*more).stdout)
    assert "5 prompts of" in shown
    assert "dataset: long, 2 prompts of" in shown and "source: unnamed, 3 prompts of" in shown


def test_needles_are_questions_too(tmp_path, quick):
    # Their context has no documents but its paragraphs: dense and nothing else is comparable.
    needle = {
        "index": 7,
        "input": "Some special magic numbers are hidden within the following text. Make sure to "
        "memorize it. I will quiz you about the numbers afterwards.\n"
        + "The mill grinds kelp. " * 8
        + "\nOne of the special magic numbers for tide is: 4711.\n"
        + "The mill grinds rye. " * 8
        + "\nWhat is the special magic number for tide mentioned in the provided text? The special "
        "magic number for tide mentioned in the provided text is",
        "outputs": ["4711"],
        "length": 90,
    }
    path = tmp_path / "niah.jsonl"
    path.write_text(json.dumps(needle) + "\n")
    values = values_of(call(*quick, "--questions", path, "--output", "json"))
    assert [question["id"] for question in values["questions"]] == ["a", "b", "c", "needle-7"]
    assert values["questions"][3]["source"] == "RULER niah"


@pytest.mark.parametrize(("limit", "expected"), [(1, ["a", "a"]), (2, ["a", "b", "a", "d"])])
def test_a_limit_holds_for_each_file(folder, quick, limit, expected):
    more = [*quick, "--questions", folder / "long.jsonl", "--limit", limit, "--output", "json"]
    assert [question["id"] for question in values_of(call(*more))["questions"]] == expected


def test_prompts_are_chosen_by_length(folder, quick):
    more = [*quick, "--questions", folder / "long.jsonl", "--output", "json", "--no-generate"]
    lengths = values_of(call(*more))["prompt_tokens"]
    a, b, c, long_a, long_d = lengths
    assert a == b < c < long_a == long_d

    def chosen(*bounds: object) -> tuple[list[str], str]:
        result = call(*more, *bounds)
        return [question["id"] for question in values_of(result)["questions"]], result.stderr

    found, said = chosen("--max-tokens", a)
    assert found == ["a", "b"] and f"3 questions left out: not 1 to {a} tokens" in said
    found, said = chosen("--min-tokens", c)
    assert found == ["c", "a", "d"] and f"2 questions left out: not {c} to 4096 tokens" in said
    assert chosen("--min-tokens", a + 1, "--max-tokens", long_a - 1)[0] == ["c"]
    # The limit counts what is left.
    assert chosen("--min-tokens", c, "--limit", 1)[0] == ["c", "a"]


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (("--min-tokens", "4000"), "no question has a prompt of the wanted length"),
        (("--min-tokens", "9", "--max-tokens", "8"), "from low to high, found 9 to 8 tokens"),
        (("--shard", "0/2"), "expected --shard I/N with I of 1 to N, found '0/2'"),
        (("--shard", "3/2"), "expected --shard I/N with I of 1 to N, found '3/2'"),
        (("--shard", "2"), "expected --shard I/N with I of 1 to N, found '2'"),
        (("--shard", "4/4"), "expected a question in shard 4/4, found 3 in all"),
    ],
)
def test_bounds_that_leave_nothing_are_refused(quick, bounds, message):
    result = call(*quick, *bounds)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "bad.jsonl line 2: expected a JSON object"),
        ('{"id": 1, "question": "?"}', "bad.jsonl line 2: field 'answers' is missing"),
        ('{"index": 1, "outputs": ["x"]}', "bad.jsonl line 2: field 'input' is missing"),
        (
            '{"id": 1, "question": "?", "answers": ["x"], "documents": ["a.txt"]}',
            "bad.jsonl line 2: expected 'documents' as objects with a 'text', found 'a.txt'",
        ),
    ],
)
def test_a_bad_line_is_named(tmp_path, quick, line, message):
    path = write_questions(tmp_path / "bad.jsonl", ("x", [0]))
    path.write_text(path.read_text() + line + "\n")
    result = call(*quick, "--questions", path)
    assert result.exit_code == 2
    assert message in flat(result.stderr)


def test_a_question_that_is_there_twice_is_named(folder, quick):
    result = call(*quick, "--questions", folder / "short.jsonl")
    assert result.exit_code == 2
    assert "found 'a' of 'short' as question 1 of" in flat(result.stderr)


# --- what is measured and where it goes --------------------------------------------------------


def test_what_need_not_be_measured_is_left_out(quick):
    values = values_of(call(*quick, "--output", "json"))
    assert {"f1", "em", "ca_recall"} <= set(values["methods"]["sift"])
    less = [*quick, "--no-generate", "--no-recall"]
    values = values_of(call(*less, "--output", "json"))
    assert set(values["methods"]["sift"]) == {
        *(set(METRICS) - {"f1", "em", "la_recall", "ca_recall"}),
        "nll_change",
    }
    assert all(score["f1"] is None for score in values["questions"][0]["scores"].values())
    optional = ("F1", "CA mass")
    assert all(column in call(*quick).stdout for column in optional)
    assert not any(column in call(*less).stdout for column in optional)


def test_results_name_model_data_set_and_method(folder, quick, tmp_path, tiny_model_dir):
    path = tmp_path / "new" / "quality.json"
    more = [*quick, "--questions", folder / "long.jsonl", "--results", path]
    assert call(*more).exit_code == 0
    content = json.loads(path.read_text())
    assert content["bench"] == "quality"
    assert {row["case"] for row in content["rows"]} == {
        f"{tiny_model_dir.name}/{dataset}/{method}"
        for dataset in ("short", "long", "long+short")
        for method in ("dense", "sift")
    }
    metrics = {row["metric"] for row in content["rows"] if row["case"].endswith("long/sift")}
    assert {"f1", "f1_lo", "f1_dense", "f1_dense_hi", "ca_recall", "em", "prompts"} <= metrics


def test_scores_of_an_earlier_run_are_not_measured_again(quick, tmp_path):
    path = tmp_path / "scores.jsonl"
    more = [*quick, "--scores", path, "--output", "json"]
    halves = [values_of(call(*more, "--shard", f"{number}/2")) for number in (1, 2)]
    assert [[q["id"] for q in half["questions"]] for half in halves] == [["a", "c"], ["b"]]
    kept = path.read_text()
    assert len(kept.splitlines()) == 3
    whole = values_of(call(*more))
    assert path.read_text() == kept
    assert [q["id"] for q in whole["questions"]] == ["a", "b", "c"]
    assert whole["questions"][0] == halves[0]["questions"][0]
    other = call(*more, "--no-recall")
    assert other.exit_code == 2 and "expected scores of" in other.stderr


def test_a_plot_is_a_png(quick, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / "plot.png"
    assert call(*quick, "--plot", path).exit_code == 0
    assert path.read_bytes()[:8] == PNG


@pytest.mark.parametrize("report", ["quality", "invariance"])
def test_results_that_cannot_be_written_are_refused_before_the_run(tmp_path, report):
    (tmp_path / "r.json").write_text("[]")
    result = call("--model", "no", "--report", report, "--results", tmp_path / "r.json")
    assert result.exit_code == 2
    assert "is no results file" in flat(result.stderr)


@pytest.mark.parametrize("report", ["quality", "invariance"])
def test_a_plot_that_cannot_be_written_is_refused_before_the_run(tmp_path, report):
    pytest.importorskip("matplotlib")
    result = call("--model", "no-such-model", "--report", report, "--plot", tmp_path)
    assert result.exit_code == 2
    assert "cannot be written: it is a folder" in result.stderr


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ("dense,magic", "found 'magic'"),
        ("sift:2", "expected level of 1-bit masks as a whole number of 1 to 1, found '2'"),
        ("epic:x", "expected tokens as a whole number of 0 to 1048576, found 'x'"),
        (" , ", "found none"),
    ],
)
def test_methods_that_are_not_there_are_refused(quick, methods, message):
    result = call(*quick, "--methods", methods)
    assert result.exit_code == 2
    assert message in flat(result.stderr)


def test_methods_may_have_spaces_between_them(quick):
    values = values_of(call(*quick, "--methods", " dense , epic:4,, no-cross", "--output", "json"))
    assert list(values["methods"]) == ["dense", "epic:4", "no-cross"]


# --- the paper's claims ------------------------------------------------------------------------


def test_invariance_prints_both_claims(folder, tiny_model_dir, tmp_path):
    path = tmp_path / "claims.png"
    result = call(
        *("--model", tiny_model_dir, "--report", "invariance"),
        *("--questions", folder / "long.jsonl", "--alpha", "0.02", "--plot", path),
    )
    assert result.exit_code == 0, result.output
    first, _, second = result.stdout.partition("Claim 2")
    assert "Claim 1, 4 documents in 2 prompts" in flat(first) and ">= 0.02 in" in flat(first)
    assert "6 documents in 2 prompts" in flat(second) and "(high: >= 0.01)" in flat(second)
    for part, columns in ((first, ("LA tiles", "Jaccard")), (second, ("high", "paper", "probe"))):
        rows = [line.split()[0] for line in part.splitlines() if line.strip()]
        assert rows[-4:] == ["0", "1", "pooled", "all"]
        assert all(column in flat(part) for column in columns)
    pytest.importorskip("matplotlib")
    assert path.read_bytes()[:8] == PNG


def test_invariance_as_json(folder, tiny_model_dir):
    arguments = [
        *("--model", tiny_model_dir, "--report", "invariance", "--limit", "1"),
        *("--questions", folder / "long.jsonl", "--output", "json"),
    ]
    values = values_of(call(*arguments))
    assert (values["alpha"], values["beta"], values["prompts"]) == (0.001, 0.01, 1)
    assert len(values["layers"]) == 2
    assert set(values["overall"]["ca"]) == {"paper", "paper-fixed", "probe"}
    assert values["layers"][1]["ca"]["probe"]["density"] == 0.0  # the default skips the last layer
    strict = values_of(call(*arguments, "--alpha", "0.2"))
    assert strict["alpha"] == 0.2
    found, before = (v["overall"]["la"]["density_prompt"]["mean"] for v in (strict, values))
    assert found < before


def test_invariance_writes_results(folder, tiny_model_dir, tmp_path):
    path = tmp_path / "new" / "invariance.json"
    arguments = [
        *("--model", tiny_model_dir, "--report", "invariance", "--limit", "1"),
        *("--questions", folder / "short.jsonl", "--questions", folder / "long.jsonl"),
        *("--results", path, "--output", "json"),
    ]
    values = [values_of(call(*arguments, "--alpha", alpha)) for alpha in (0.02, 0.2)]
    content = json.loads(path.read_text())
    assert content["bench"] == "invariance"
    by_name = {(row["case"], row["metric"]): row["value"] for row in content["rows"]}
    data = f"{tiny_model_dir.name}/long+short"
    policies = ("paper", "paper-fixed", "probe")
    assert {case for case, _ in by_name} == {
        *(f"{data}/alpha 0.02", f"{data}/alpha 0.2"),
        *(f"{data}/beta 0.01/{policy}" for policy in policies),
    }
    for alpha, value in zip((0.02, 0.2), values, strict=True):
        found = by_name[f"{data}/alpha {alpha}", "overall_density_prompt_hi"]
        assert found == value["overall"]["la"]["density_prompt"]["high"]
    mass = values[0]["pooled"]["ca"]["paper"]["mass"]["mean"]
    assert by_name[f"{data}/beta 0.01/paper", "pooled_mass"] == mass


def test_invariance_of_an_index_is_that_of_its_prompts(folder, tiny_model_dir):
    arguments = [folder / "index", "--model", tiny_model_dir, "--report", "invariance"]
    values = values_of(
        call(*arguments, "--questions", folder / "short.jsonl", "--limit", 1, "--output", "json")
    )
    assert values["documents"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--alpha", "0"), "--alpha"),
        (("--alpha", "1"), "--alpha"),
        (("--alpha", "x"), "--alpha"),
        (("--scores", "s.jsonl"), "expected --scores with --report quality"),
    ],
)
def test_what_invariance_cannot_take_is_refused(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = call("--model", "no-such-model", "--report", "invariance", *arguments)
    assert result.exit_code == 2
    assert message in flat(result.stderr)
    assert not list(tmp_path.iterdir())


def test_a_prompt_of_one_document_has_no_claims(tmp_path, tiny_model_dir):
    path = write_questions(tmp_path / "one.jsonl", ("solo", [3]))
    result = call("--model", tiny_model_dir, "--report", "invariance", "--questions", path)
    assert result.exit_code == 2
    assert "question solo: expected at least 2 documents" in flat(result.stderr)
