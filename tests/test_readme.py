"""What the README promises: its Python runs, its commands and folders exist."""

import re
from pathlib import Path

from sift_index.cli.main import cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_example_runs(tiny_model_dir, local_ray, tmp_path):
    from sift_index.pipelines.build import run_build
    from sift_index.pipelines.config import BuildConfig

    corpus, index = tmp_path / "corpus", tmp_path / "index"
    corpus.mkdir()
    (corpus / "a.txt").write_text("text of a document")
    run_build(BuildConfig(corpus, index, str(tiny_model_dir), device="cpu"))
    code = "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    code = code.replace("smollm2-135m", str(tiny_model_dir)).replace("corpus.sift", str(index))
    names: dict[str, object] = {}
    exec(code, names)
    plan = names["plan"]
    assert (plan.hits, plan.misses) == (1, 1)  # type: ignore[attr-defined]
    assert names["out"].shape[1] > plan.length  # type: ignore[attr-defined]


def test_every_command_and_option_shown_exists():
    shown = re.findall(r"sift-index ([a-z]+)([^\n`]*)", README)
    assert {name for name, _ in shown} >= {"build", "inspect", "verify", "eval", "models"}
    for name, rest in shown:
        options = {option for param in cli.commands[name].params for option in param.opts}
        assert set(re.findall(r"(--[a-z][a-z0-9-]*)", rest.split("#")[0])) <= options, (name, rest)


def test_folders_and_files_shown_exist():
    for name in re.findall(r"\]\(([a-z][^):]*)\)|^\| `([a-z_]+/)`", README, re.MULTILINE):
        assert (ROOT / (name[0] or name[1])).exists(), name
