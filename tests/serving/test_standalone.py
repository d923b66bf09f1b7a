"""The serving layer runs where transformers is not installed, as its documentation says."""

import subprocess
import sys

import pytest

CODE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("transformers", "ray", "datasets"):
            raise ImportError(name)

sys.meta_path.insert(0, Missing())
import {module}
"""


@pytest.mark.parametrize("module", ["layer", "step", "decoded", "example_engine"])
def test_it_needs_neither_transformers_nor_ray(module):
    code = CODE.format(module=f"sift_index.serving.{module}")
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
