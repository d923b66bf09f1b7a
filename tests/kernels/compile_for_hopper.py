"""Compile the Triton and Gluon kernels for an H100/H200 on any machine and print what came of it.

    python -m tests.kernels.compile_for_hopper

A program of its own, because a process that interprets Triton cannot compile it.
"""

import json
import re
import subprocess
import tempfile
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from sift_index.kernels import (
    hopper_attention,
    hopper_kernel,
    triton_attention,
    triton_compaction,
    triton_local_statistics,
    triton_paged,
    triton_probe_statistics,
)

TYPES = {
    **dict.fromkeys(("q", "k", "v", "k_list", "v_list", "k_out", "v_out", "out"), "*bf16"),
    **dict.fromkeys(
        ("taken", "row_tiles", "counts", "starts", "page_start", "page_length", "offsets"), "*i32"
    ),
    **dict.fromkeys(("documents", "programs", "table"), "*i32"),
    **dict.fromkeys(("lse", "total", "cos", "sin"), "*fp32"),
    "turned": "*fp16",
    "bits": "*u8",
    "scale": "fp32",
    "largest": "fp32",
}
# Statistics of the default policy; their outputs are float32, the probe's queries float16.
STATISTICS = {"D": 128, "PRECISION": "tf32x3"}
PROBE = {"q": "*fp16", "out": "*fp32", "tiles": "*i32"}


def compiled(
    kernel: Any, constants: dict[str, Any], types: dict[str, str] | None = None, **options: int
) -> dict[str, int]:
    """What `measured` says of a Triton kernel."""
    return measured(ASTSource, kernel, constants, types or {}, **options)


def compiled_statistics() -> dict[str, dict[str, int]]:
    """What `measured` says of the kernels that score documents."""
    probe, local = triton_probe_statistics, triton_local_statistics
    turning = {"D": 128, "HALF": 64, "BLOCK_HALF": 64, "BLOCK_REST": 1}
    total = STATISTICS | {"ROWS": 128, "KEYS": probe.KEYS}
    pages = STATISTICS | {"ROWS": probe.ROWS, "WINDOW": 1, "PAGE": 32}
    tiles = STATISTICS | {"ROWS": local.ROWS, "WINDOW": 64, "PAGE": 32}
    return {
        "turning": compiled(probe._turn_tile, turning, PROBE, num_warps=4),
        "probe total": compiled(probe._probe_total, total, PROBE, num_warps=8, num_stages=3),
        "probe pages": compiled(probe._probe_pages, pages, PROBE, num_warps=4, num_stages=3),
        "local tiles": compiled(
            local._local_tiles, tiles, {"out": "*fp32"}, num_warps=4, num_stages=2
        ),
    }


def compiled_gluon(dim: int) -> dict[str, int]:
    """What `measured` says of the Gluon kernel as `hopper_attention` launches it."""

    def descriptor(rows: int) -> str:
        layout = hopper_attention._layout(rows, dim, torch.bfloat16)
        return f"tensordesc<bf16[1, {rows}, {dim}],{layout!r}>"

    blocks = dict.fromkeys(("k", "v", "k_list", "v_list"), descriptor(128))
    constants = {"WITH_LSE": True, "STAGES": hopper_attention.STAGES[dim], "D": dim}
    constants |= {"TURNS": hopper_attention.TURNS[dim], "APART": hopper_attention.APART[dim]}
    types = {"q": descriptor(64), **blocks}
    return measured(GluonASTSource, hopper_kernel.attend_tiles, constants, types, num_warps=4)


def measured(
    source: Any, kernel: Any, constants: dict[str, Any], more: dict[str, str], **options: int
) -> dict[str, int]:
    """Shared memory and spilled registers in bytes, Hopper matrix instructions, the hot loop."""
    types = {
        name: "constexpr" if name in constants else {**TYPES, **more}.get(name, "i32")
        for name in kernel.arg_names
    }
    aligned = {
        (at,): [["tt.divisibility", 16]]
        for at, (name, kind) in enumerate(types.items())
        if kind.startswith("*") or (name.endswith("_stride") and name != "offsets_stride")
    }
    made: Any = triton.compile(
        source(fn=kernel, signature=types, constexprs=constants, attrs=aligned),
        target=GPUTarget("cuda", 90, 32),
        options=options,
    )
    return {
        "shared": made.metadata.shared,
        "spilled": spilled(made.asm["cubin"]),
        "wgmma": made.asm["ptx"].count("wgmma.mma_async"),
        "loop": hot_loop(made.asm["cubin"]),
    }


def hot_loop(binary: bytes) -> int:
    """Instructions of the shortest loop that multiplies and exponentiates, 0 without one."""
    found = re.findall(r"/\*([0-9a-f]{4,})\*/\s+(.*?);", disassembled(binary, "-sass"))
    place = {int(address, 16): number for number, (address, _) in enumerate(found)}
    lengths = []
    for number, (_, text) in enumerate(found):
        target = re.search(r"BRA.*?(0x[0-9a-f]+)", text)
        start = place.get(int(target[1], 16), number + 1) if target else number + 1
        body = [instruction for _, instruction in found[start : number + 1]]
        # Waits that try again jump backwards too: a real loop has both products and 64 weights.
        if _count("HGMMA", body) >= 12 and _count("MUFU.EX2", body) >= 64:
            lengths.append(len(body))
    return min(lengths, default=0)


def _count(name: str, instructions: list[str]) -> int:
    return sum(name in instruction for instruction in instructions)


def disassembled(binary: bytes, option: str) -> str:
    """What the disassembler that comes with Triton says."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, option, file.name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def spilled(binary: bytes) -> int:
    """Bytes of stack a thread uses."""
    return sum(map(int, re.findall(r"STACK:(\d+)", disassembled(binary, "-res-usage"))))


def main() -> None:
    attention: dict[str, Any] = {"LEVELS": 1, "NEIGHBOUR": True, "WITH_LSE": True, "BLOCK_N": 128}
    attention |= {"D": 128, "PRECISION": "ieee"}
    copying = {"D": 128, "BLOCK_D": 128, "PAGE": 32, "ROWS": 128}
    in_pages = {"D": 128, "BLOCK_D": 128, "KV_PAGE": 16, "ROWS": 128}
    found = {
        "attention": compiled(triton_attention._attend_tile, attention, num_warps=8, num_stages=2),
        "compaction": compiled(triton_compaction._copy_pages, copying, num_warps=4),
        "paged lists": compiled(triton_paged._copy_listed, {**copying, "KV_PAGE": 16}),
        "paged rows": compiled(triton_paged._copy_range, in_pages),
        **compiled_statistics(),
        "gluon 64": compiled_gluon(64),
        "gluon 128": compiled_gluon(128),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
