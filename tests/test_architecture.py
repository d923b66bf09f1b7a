"""Imports point one way: formats <- kernels <- sift_index <- pipelines (DESIGN section 4)."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PUBLIC = ("formats", "kernels", "pipelines", "configs")
# What each folder may import of this project, by prefix.
ALLOWED = {
    "formats": ("sift_index.formats",),
    "configs": ("sift_index.configs",),
    "kernels": ("sift_index.kernels", "sift_index.formats"),
    "sift_index": ("sift_index",),
    "pipelines": ("sift_index",),
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_folder_imports_only_what_it_may(folder):
    for path in (ROOT / folder).rglob("*.py"):
        ours = {name for name in imports(path) if name.split(".")[0] == "sift_index"} - {
            "sift_index"
        }
        wrong = {name for name in ours if not name.startswith(ALLOWED[folder])}
        assert not wrong, f"{path} imports {wrong}"


def test_only_the_command_line_imports_pipelines():
    for path in (ROOT / "sift_index").rglob("*.py"):
        users = {name for name in imports(path) if name.startswith("sift_index.pipelines")}
        assert not users or path.parent.name == "cli", f"{path} imports {users}"


def test_top_level_names_are_never_imported_bare():
    for folder in (*ALLOWED, "tests", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            bare = {name for name in imports(path) if name.split(".")[0] in PUBLIC}
            assert not bare, f"{path} imports {bare}"


@pytest.mark.parametrize(
    "module", ["sift_index", "sift_index.formats.reader", "sift_index.cli.main"]
)
def test_light_modules_do_not_import_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_kernels_has_no_init_file():
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_public_names_resolve():
    import sift_index

    assert all(getattr(sift_index, name) is not None for name in sift_index.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = sift_index.no_such_name
