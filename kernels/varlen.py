"""One way to call the attention libraries that take sequences of different lengths.

With them a GPU for which this project has no kernel of its own still runs sparse attention at a
library's speed (`library_attention`). Every library names its arguments differently and has its
own idea of what a row without keys gives; behind `Attend` they are all the same. `best` says which
of them runs here, and why not a faster one.

A library learns where an entry's keys begin from cumulative lengths, and how many it may see from
"used" lengths. Given both, it takes the former as nothing but starts: these may repeat, overlap and
come in any order, so that many entries share keys which are never copied.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol

import torch

from sift_index.kernels.dense import grouped_scores
from sift_index.kernels.lists import Pair

FA3, FA2, ATEN, PLAIN = "fa3", "fa2", "aten", "plain"
FA3_MODULE, FA2_MODULE = "fa3_fwd_interface", "flash_attn.flash_attn_interface"

# Keys that a library reads at once. FA3 multiplies values behind an entry's last key by zero
# instead of leaving them out, so those within one block must be finite: it takes 192 at most.
KEY_BLOCK = 256
# FA2 and PyTorch number entries along a dimension of the CUDA grid that ends here.
MAX_ENTRIES = 65_535


class Attend(Protocol):
    """Attention of B entries, each to its own range of keys.

    q: [total_q, H, D]; k, v: [total_k, Hkv, D], contiguous along D, other strides free. The rows of
    entry b are [cu_q[b], cu_q[b + 1]), cu_q int32 [B + 1] from 0 to total_q; its keys are the first
    k_used[b] (0 or more) of those from k_start[b] on, both int32 [B]. max_q, max_k: bounds of both
    lengths. causal: an entry's last row sees its last used key, each row before it one less.
    Returns [total_q, H, D] in q's dtype and natural log-sum-exp, float32 [H, total_q]; rows that
    see no key give 0 and -inf. Keys behind an entry's last may hold anything, values within
    `KEY_BLOCK` of it anything finite. Waits for no device, `plain` apart.
    """

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_q: torch.Tensor,
        k_start: torch.Tensor,
        k_used: torch.Tensor,
        max_q: int,
        max_k: int,
        scale: float,
        causal: bool,
    ) -> Pair:
        """Attend, as the class says."""
        ...


@dataclass(frozen=True)
class Backend:
    """A library. obstacle: why it cannot run for a device, dtype and head_dim, or None.

    title: what a log line calls it, with its version.
    """

    name: str
    attend: Attend
    obstacle: Callable[[torch.device, torch.dtype, int], str | None]
    title: Callable[[], str]


@dataclass(frozen=True)
class Best:
    """The fastest backend there is, None where there is none. reason: for a log line or error."""

    backend: Backend | None
    reason: str


@lru_cache
def best(device: torch.device, dtype: torch.dtype, head_dim: int) -> Best:
    """Return the fastest backend for tensors of this kind. `plain` is for a CPU alone."""
    obstacles: list[str] = []
    for backend in BACKENDS.values():
        obstacle = backend.obstacle(device, dtype, head_dim)
        if obstacle is None:
            passed = f" ({'; '.join(obstacles)})" if obstacles and device.type != "cpu" else ""
            return Best(backend, backend.title() + passed)
        obstacles.append(f"{backend.name}: {obstacle}")
    return Best(None, "; ".join(obstacles))


def attend_fa3(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_q: torch.Tensor,
    k_start: torch.Tensor,
    k_used: torch.Tensor,
    max_q: int,
    max_k: int,
    scale: float,
    causal: bool,
) -> Pair:
    """Attend as `Attend` says with FlashAttention 3, package `fa3-fwd`."""
    if not _anything(q, k, k_start, max_q, max_k):
        return _nothing(q)
    out, lse = import_module(FA3_MODULE).flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q=cu_q,
        cu_seqlens_k=_as_cumulative(k_start),
        max_seqlen_q=max_q,
        max_seqlen_k=max_k,
        seqused_k=k_used,
        softmax_scale=scale,
        causal=causal,
        return_attn_probs=True,
    )
    return out, _without_infinity(lse)


def attend_fa2(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_q: torch.Tensor,
    k_start: torch.Tensor,
    k_used: torch.Tensor,
    max_q: int,
    max_k: int,
    scale: float,
    causal: bool,
) -> Pair:
    """Attend as `Attend` says with FlashAttention 2, package `flash-attn`.

    Only the function under its public one takes used lengths.
    """
    if not _anything(q, k, k_start, max_q, max_k):
        return _nothing(q)
    out, lse, *_ = import_module(FA2_MODULE)._flash_attn_varlen_forward(
        q,
        k,
        v,
        cu_seqlens_q=cu_q,
        cu_seqlens_k=_as_cumulative(k_start),
        max_seqlen_q=_more_than_one(max_q),
        max_seqlen_k=max_k,
        dropout_p=0.0,
        softmax_scale=scale,
        causal=causal,
        seqused_k=k_used,
    )
    return out, _without_infinity(lse)


def attend_aten(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_q: torch.Tensor,
    k_start: torch.Tensor,
    k_used: torch.Tensor,
    max_q: int,
    max_k: int,
    scale: float,
    causal: bool,
) -> Pair:
    """Attend as `Attend` says with the flash kernel inside PyTorch, an earlier FA2."""
    if not _anything(q, k, k_start, max_q, max_k):
        return _nothing(q)
    out, lse, *_ = torch.ops.aten._flash_attention_forward(
        q,
        k,
        v,
        cum_seq_q=cu_q,
        cum_seq_k=_as_cumulative(k_start),
        max_q=_more_than_one(max_q),
        max_k=max_k,
        dropout_p=0.0,
        is_causal=causal,
        return_debug_mask=False,
        scale=scale,
        seqused_k=k_used,
    )
    return out, _without_infinity(lse)


def attend_plain(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_q: torch.Tensor,
    k_start: torch.Tensor,
    k_used: torch.Tensor,
    max_q: int,
    max_k: int,
    scale: float,
    causal: bool,
) -> Pair:
    """Attend as `Attend` says entry by entry in float32; reads the lengths on the host."""
    out, lse = _nothing(q)
    begins, starts, used = cu_q.tolist(), k_start.tolist(), k_used.tolist()
    for begin, end, start, keys in zip(begins, begins[1:], starts, used, strict=False):
        if begin == end or not keys:
            continue
        rows = q[begin:end].transpose(0, 1)
        seen = slice(start, start + keys)
        scores = grouped_scores(rows, k[seen].transpose(0, 1), scale)  # [H, rows, keys]
        if causal:
            last = torch.arange(keys - (end - begin), keys, device=q.device)[:, None]
            later = torch.arange(keys, device=q.device) > last
            scores.masked_fill_(later, -math.inf)
        lse[:, begin:end] = scores.logsumexp(-1)
        # A row without keys has no probabilities: 0 / 0.
        weights = scores.softmax(-1).nan_to_num_(0.0)
        values = v[seen].transpose(0, 1).float()
        grouped = weights.unflatten(0, (values.shape[0], -1)) @ values[:, None]
        out[begin:end] = grouped.flatten(0, 1).transpose(0, 1).to(q.dtype)
    return out, lse


def _anything(
    q: torch.Tensor, k: torch.Tensor, k_start: torch.Tensor, max_q: int, max_k: int
) -> bool:
    """Whether there is work: libraries refuse calls without entries, rows or keys."""
    return min(q.shape[0], k.shape[0], k_start.shape[0], max_q, max_k) > 0


def _nothing(q: torch.Tensor) -> Pair:
    """Return what rows give that see no key."""
    lse = q.new_full((q.shape[1], q.shape[0]), -math.inf, dtype=torch.float32)
    return torch.zeros_like(q), lse


def _as_cumulative(k_start: torch.Tensor) -> torch.Tensor:
    """Return int32 [B + 1]: the last number would end an entry whose length is given anyway."""
    return torch.nn.functional.pad(k_start, (0, 1))


def _more_than_one(max_q: int) -> int:
    """FA2 reorders heads and rows where it believes that each entry has one row; never let it."""
    return max(max_q, 2)


def _without_infinity(lse: torch.Tensor) -> torch.Tensor:
    """FA2 says +inf where a row sees no key, FA3 -inf; both leave 0 in the output."""
    return torch.where(lse == math.inf, -math.inf, lse)


def _fa3_obstacle(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    reason = _cuda_obstacle(device, head_dim)
    if reason is not None:
        return reason
    # Its wheel is built without float16, and other architectures gain nothing over FA2.
    if torch.cuda.get_device_capability(device) != (9, 0):
        return "the GPU is not of the Hopper generation (sm_90)"
    if dtype != torch.bfloat16:
        return f"the dtype is {dtype}, not bfloat16"
    return _import_obstacle(FA3_MODULE, "flash_attn_varlen_func", "fa3-fwd")


def _fa2_obstacle(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    reason = _ampere_obstacle(device, dtype, head_dim)
    if reason is not None:
        return reason
    return _import_obstacle(FA2_MODULE, "_flash_attn_varlen_forward", "flash-attn")


def _aten_obstacle(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    reason = _ampere_obstacle(device, dtype, head_dim)
    if reason is None and not torch.backends.cuda.is_flash_attention_available():
        return "this PyTorch was built without flash attention"
    return reason


def _plain_obstacle(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    return None if device.type == "cpu" else f"the device is {device.type}, not a CPU"


def _ampere_obstacle(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    reason = _cuda_obstacle(device, head_dim)
    if reason is not None:
        return reason
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "the GPU is older than the Ampere generation (sm_80)"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"the dtype is {dtype}, not float16 or bfloat16"
    return None


def _cuda_obstacle(device: torch.device, head_dim: int) -> str | None:
    if device.type != "cuda" or torch.version.hip is not None:
        kind = "ROCm" if device.type == "cuda" else device.type
        return f"the device is {kind}, not CUDA"
    if head_dim % 8 or head_dim > 256:
        return f"head_dim is {head_dim}, not a multiple of 8 up to 256"
    return None


def _import_obstacle(module: str, function: str, package: str) -> str | None:
    """Return why a function cannot be had: binaries often fit one PyTorch and not another."""
    try:
        found = import_module(module)
    except (ImportError, OSError, RuntimeError) as error:
        if isinstance(error, ModuleNotFoundError) and module.startswith(error.name or module):
            return f"{package} is not installed"
        return f"{package} cannot be imported: {error}"
    return None if hasattr(found, function) else f"{package} has no {function}"


def _packaged(title: str, package: str) -> Callable[[], str]:
    def named() -> str:
        try:
            return f"{title} ({package} {version(package)})"
        except PackageNotFoundError:
            return title

    return named


# Fastest first.
BACKENDS = {
    FA3: Backend(FA3, attend_fa3, _fa3_obstacle, _packaged("FlashAttention 3", "fa3-fwd")),
    FA2: Backend(FA2, attend_fa2, _fa2_obstacle, _packaged("FlashAttention 2", "flash-attn")),
    ATEN: Backend(ATEN, attend_aten, _aten_obstacle, _packaged("PyTorch's flash kernel", "torch")),
    PLAIN: Backend(PLAIN, attend_plain, _plain_obstacle, lambda: "plain torch on a CPU"),
}
