"""Compile the Triton kernels for an H100/H200 on any machine and print what came of it.

    python -m tests.kernels.compile_for_hopper

A program of its own, because a process that interprets Triton cannot compile it.
"""

import json
import re
import subprocess
import tempfile
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sift_index.kernels import triton_attention, triton_compaction

TYPES = {
    **dict.fromkeys(("q", "k", "v", "k_list", "v_list", "out"), "*bf16"),
    **dict.fromkeys(("row_tiles", "counts", "page_start", "page_length", "offsets"), "*i32"),
    "lse": "*fp32",
    "bits": "*u8",
    "scale": "fp32",
}


def compiled(kernel: Any, constants: dict[str, Any], **options: int) -> dict[str, int]:
    """Shared memory and spilled registers in bytes, and Hopper matrix instructions."""
    types = {
        name: "constexpr" if name in constants else TYPES.get(name, "i32")
        for name in kernel.arg_names
    }
    aligned = {
        (at,): [["tt.divisibility", 16]]
        for at, (name, kind) in enumerate(types.items())
        if kind.startswith("*") or (name.endswith("_stride") and name != "offsets_stride")
    }
    source = ASTSource(fn=kernel, signature=types, constexprs=constants, attrs=aligned)
    made: Any = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    return {
        "shared": made.metadata.shared,
        "spilled": spilled(made.asm["cubin"]),
        "wgmma": made.asm["ptx"].count("wgmma.mma_async"),
    }


def spilled(binary: bytes) -> int:
    """Bytes of stack a thread uses, by the disassembler that comes with Triton."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        usage = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return sum(map(int, re.findall(r"STACK:(\d+)", usage)))


def main() -> None:
    attention: dict[str, Any] = {"LEVELS": 1, "NEIGHBOUR": True, "WITH_LSE": True, "BLOCK_N": 128}
    attention |= {"D": 128, "PRECISION": "ieee"}
    copying = {"D": 128, "BLOCK_D": 128, "PAGE": 32}
    found = {
        "attention": compiled(triton_attention._attend_tile, attention, num_warps=8, num_stages=2),
        "compaction": compiled(triton_compaction._copy_page, copying, num_warps=4),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
