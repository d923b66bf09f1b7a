"""The Triton kernels compile for a GPU: the interpreter takes what the compiler would not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def test_the_kernels_compile_for_hopper(tmp_path):
    pytest.importorskip("triton")
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "tests.kernels.compile_for_hopper"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # What `_keys_per_block` reckons with: q's tile and two stages of K and V, in bfloat16.
    attention = found["attention"]
    assert attention["shared"] == (128 + 4 * 128) * 128 * 2
    assert attention["wgmma"] > 0
    assert attention["spilled"] == found["compaction"]["spilled"] == 0
