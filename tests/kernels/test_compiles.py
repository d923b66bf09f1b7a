"""Triton and Gluon kernels compile for a GPU: interpreters take what compilers would not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    pytest.importorskip("triton")
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    command = [sys.executable, "-m", "tests.kernels.compile_for_hopper"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_kernels_compile_for_hopper(found):
    # What `_keys_per_block` reckons with: q's tile and two stages of K and V, in bfloat16.
    attention = found["attention"]
    assert attention["shared"] == (128 + 4 * 128) * 128 * 2
    assert attention["wgmma"] > 0
    # Masked blocks of the portable kernel, which Hopper only falls back to, keep two registers.
    allowed = {"attention": 8}
    assert all(kernel["spilled"] <= allowed.get(name, 0) for name, kernel in found.items())


@pytest.mark.parametrize(
    "dim, products, loop, shared", [(64, 4 * 12, 600, 184 << 10), (128, 6 * 16, 480, 216 << 10)]
)
def test_the_hopper_kernel_stays_within_its_budget(dim, products, loop, shared, found):
    """Per block of 128 keys: dense FlashAttention-3 takes 472 instructions at head_dim 128.

    At 64 the only loop holds the masks of some blocks, which whole ones jump over.
    """
    kernel = found[f"gluon {dim}"]
    # Two warpgroups, each with the products of the diagonal, of each loop, and the last values.
    assert kernel["wgmma"] == products
    assert 0 < kernel["loop"] <= loop
    # A multiprocessor has 227 KiB.
    assert kernel["shared"] <= shared
