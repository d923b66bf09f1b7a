"""The project as it is shipped: one wheel, one top-level name, all data; and what mypy checks."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("formats", "kernels", "pipelines", "configs")
DATA_SUFFIXES = {".yaml", ".txt", ".md", ".sh", ".json", ".jsonl", ".typed"}


def run(*command: str, cwd: Path = ROOT, **environment: str) -> str:
    env = {**os.environ, **environment}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel built from a copy of the tree, so that no build folder appears in the checkout."""
    copy = tmp_path_factory.mktemp("source") / "tree"
    kept = shutil.ignore_patterns(
        ".git", ".venv", "build", "dist", "*.egg-info", "sift-demo", ".*_cache"
    )
    shutil.copytree(ROOT, copy, symlinks=True, ignore=kept)
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(copy))
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """A new virtual environment with only the wheel; dependencies come from this environment."""
    venv = tmp_path_factory.mktemp("venv") / "fresh"
    run(sys.executable, "-m", "venv", "--without-pip", str(venv))
    python = venv / "bin" / "python"
    site = Path(run(str(python), "-c", "import site; print(site.getsitepackages()[0])").strip())
    run(sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", str(wheel))
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


def source_modules() -> list[str]:
    files = [ROOT / "sift_index", *(ROOT / folder for folder in FOLDERS)]
    names = set()
    for folder in files:
        for path in folder.rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts if parts[0] == "sift_index" else ("sift_index", *parts)
            names.add(".".join(part for part in parts if part != "__init__"))
    return sorted(names)


def source_data() -> list[str]:
    found = [
        str(Path("sift_index") / path.relative_to(ROOT))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in DATA_SUFFIXES
    ]
    return sorted([*found, "sift_index/py.typed"])


def test_the_wheel_puts_nothing_but_sift_index_into_site_packages(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} - {"sift_index"} == {
        name.split("/")[0] for name in names if ".dist-info/" in name
    }


def test_the_installed_wheel_imports_every_subpackage(installed, tmp_path):
    modules = source_modules()
    assert "sift_index.kernels.reference" in modules and len(modules) > 80
    code = (
        "import importlib, sys, sift_index\n"
        f"[importlib.import_module(name) for name in {modules!r}]\n"
        "print(sift_index.__file__)"
    )
    place = run(str(installed), "-c", code, cwd=tmp_path).strip().splitlines()[-1]
    assert str(installed.parent.parent) in place, "imported the checkout, not the wheel"


def test_the_installed_wheel_finds_every_data_file(wheel, installed, tmp_path):
    names = set(zipfile.ZipFile(wheel).namelist())
    data = source_data()
    assert "sift_index/configs/probes/probe-1.txt" in data
    assert "sift_index/formats/SPEC.md" in data
    assert [name for name in data if name not in names] == []
    code = (
        "from sift_index.models.presets import load_preset, preset_names\n"
        "from sift_index.selection.policy import load_policy, policy_names\n"
        "from sift_index.selection.probes import probe_texts\n"
        "from sift_index.evaluation.questions import example_questions\n"
        "print(len([load_preset(n) for n in preset_names()]),"
        " len([load_policy(n) for n in policy_names()]),"
        " len(probe_texts('builtin')), len(example_questions()))"
    )
    assert run(str(installed), "-c", code, cwd=tmp_path).split() == ["4", "3", "4", "16"]


def test_the_installed_command_runs(installed, tmp_path):
    assert "probe" in run(str(installed.parent / "sift-index"), "build", "--help", cwd=tmp_path)


def test_mypy_checks_every_file_of_the_project():
    printed = run(sys.executable, "-m", "mypy")
    found = re.search(r"no issues found in (\d+) source files", printed)
    assert found, printed
    folders = ("sift_index", *FOLDERS, "tests", "benchmarks")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    # Links are not followed by rglob, so each file counts once under its own folder.
    assert int(found[1]) == len(set(files))
