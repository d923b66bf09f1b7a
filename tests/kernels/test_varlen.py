"""Attention libraries behind one interface: `plain` against a softmax written out, then the rest.

Where a library runs it is compared with the naive softmax; everywhere, what it is asked for is
shown by a stand-in that records its arguments and computes the answer with `plain`.
"""

import importlib
import math
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_index.kernels import varlen
from sift_index.kernels.varlen import ATEN, BACKENDS, FA2, FA3, PLAIN, best

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
NAN, INF = math.nan, math.inf
attend_plain: Any = varlen.attend_plain
# Entries of (rows, first key, keys): repeated, overlapping and nested ranges in no order, without
# keys, without a gap, and behind one.
ENTRIES = [(3, 40, 30), (5, 0, 70), (1, 40, 0), (140, 40, 300), (7, 0, 71), (2, 10, 1), (4, 339, 1)]


def attends(name: str) -> Any:
    return BACKENDS[name].attend


def runnable(name: str, dtype: torch.dtype, dim: int) -> Any:
    """The function of a backend on the device at hand; skips where it cannot run."""
    if name != PLAIN:
        obstacle = BACKENDS[name].obstacle(DEVICE, dtype, dim)
        if obstacle is not None:
            pytest.skip(f"{name}: {obstacle}")
    return attends(name)


def made(entries, heads=4, kv_heads=2, dim=16, total_k=400, dtype=torch.float32) -> Any:
    """Arguments of a call, token-major with strides of their own, and their lengths' tables."""
    torch.manual_seed(len(entries))
    rows = sum(rows for rows, _, _ in entries)
    q = torch.randn(heads, rows, dim).to(dtype).transpose(0, 1)
    k, v = (torch.randn(total_k, kv_heads, dim).to(dtype) for _ in range(2))
    cu_q = torch.tensor([0, *(r for r, _, _ in entries)]).cumsum(0).int()
    k_start = torch.tensor([start for _, start, _ in entries], dtype=torch.int32)
    k_used = torch.tensor([keys for _, _, keys in entries], dtype=torch.int32)
    longest = [max((entry[at] for entry in entries), default=0) for at in (0, 2)]
    return [q, k, v, cu_q, k_start, k_used, *longest, 0.3]


def naive(arguments, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Float64, row by row and head by head."""
    q, k, v, cu_q, k_start, k_used, *_, scale = arguments
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    out, lse = torch.zeros_like(q, dtype=torch.float64), torch.full((heads, len(q)), -INF).double()
    for entry in range(len(k_start)):
        begin, end = cu_q[entry].item(), cu_q[entry + 1].item()
        start, keys = k_start[entry].item(), k_used[entry].item()
        for row in range(begin, end):
            seen = keys - (end - 1 - row) if causal else keys
            for head in range(heads if seen > 0 else 0):
                here = slice(start, start + seen)
                scores = k[here, head // group].double() @ q[row, head].double() * scale
                out[row, head] = scores.softmax(0) @ v[here, head // group].double()
                lse[head, row] = scores.logsumexp(0)
    return out, lse


def run(name: str, arguments, causal: bool):
    q = arguments[0]
    attend = runnable(name, q.dtype, q.shape[2])
    moved = [x.to(DEVICE) if isinstance(x, torch.Tensor) else x for x in arguments]
    return [x.cpu() for x in attend(*moved, causal)]


def agree(found, expected, dtype) -> None:
    out, lse = found
    assert out.dtype == dtype and lse.dtype == torch.float32
    tolerance = {torch.float32: 1e-5}.get(dtype, 2e-2)
    torch.testing.assert_close(out.double(), expected[0], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(lse.double(), expected[1], rtol=tolerance, atol=tolerance)


@st.composite
def calls(draw: st.DrawFn):
    keys = draw(st.integers(0, 60))
    entries = []
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, keys))
        entries.append((draw(st.integers(1, 20)), start, draw(st.integers(0, keys - start))))
    kv_heads = draw(st.integers(1, 2))
    heads = kv_heads * draw(st.sampled_from([1, 3, 4]))
    return made(entries, heads, kv_heads, 8, keys), draw(st.booleans())


@settings(max_examples=40, deadline=None)
@given(calls())
def test_plain_equals_a_softmax_written_out(call):
    arguments, causal = call
    agree(attend_plain(*arguments, causal), naive(arguments, causal), torch.float32)


TYPES = [(PLAIN, torch.float32), (PLAIN, torch.bfloat16), (FA3, torch.bfloat16)]
TYPES += [(name, dtype) for name in (FA2, ATEN) for dtype in (torch.float16, torch.bfloat16)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("heads, kv_heads", [(2, 2), (3, 1), (8, 2)])
@pytest.mark.parametrize("name, dtype", TYPES, ids=str)
def test_every_library_gives_the_same(name, dtype, heads, kv_heads, dim, causal):
    arguments = made(ENTRIES, heads, kv_heads, dim, dtype=dtype)
    agree(run(name, arguments, causal), naive(arguments, causal), dtype)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name, dtype", TYPES, ids=str)
def test_keys_that_are_not_used_are_not_seen(name, dtype, causal):
    """Behind an entry's last key and in gaps, keys are NaN and values dominate any average."""
    entries = [(9, 0, 50), (130, 200, 90), (9, 0, 20), (5, 200, 33), (2, 120, 0), (3, 200, 90)]
    arguments = made(entries, 4, 1, 64, dtype=dtype)
    expected = naive(arguments, causal)
    for rows in (slice(50, 200), slice(290, 400)):
        arguments[1][rows], arguments[2][rows] = NAN, 3e4
    agree(run(name, arguments, causal), expected, dtype)


@pytest.mark.parametrize("name, dtype", [entry for entry in TYPES if entry[0] != FA3], ids=str)
def test_values_that_are_not_used_may_be_anything(name, dtype):
    """FA3 multiplies them by zero, which is why the contract asks for finite ones."""
    arguments = made([(9, 0, 50), (130, 0, 90)], 4, 1, 64, dtype=dtype)
    expected = naive(arguments, False)
    arguments[2][90:] = NAN
    agree(run(name, arguments, False), expected, dtype)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name, dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    "entries", [[], [(3, 5, 0)], [(1, 7, 9), (1, 0, 30)], [(1, 3, 0), (1, 3, 400 - 3)]], ids=len
)
def test_few_entries_and_single_rows(entries, name, dtype, causal):
    arguments = made(entries, 4, 2, 64, dtype=dtype)
    agree(run(name, arguments, causal), naive(arguments, causal), dtype)


@pytest.mark.parametrize("name, dtype", TYPES, ids=str)
def test_more_entries_than_a_scheduler_sorts_at_once(name, dtype):
    """FA3 prepares 992 at a time; many share a start, as compacted lists do."""
    if name == PLAIN:
        pytest.skip("for the libraries")
    entries = [(1 + i % 7, 30 * (i % 5), i % 41) for i in range(2500)]
    arguments = made(entries, 2, 1, 64, dtype=dtype)
    floats: Any = [x.float() if x.is_floating_point() else x for x in arguments[:6]]
    expected = [x.double() for x in attend_plain(*floats, *arguments[6:], False)]
    agree(run(name, arguments, False), expected, dtype)


class Recorder:
    """A library's function: keeps what it was called with and computes with `plain`.

    empty: what the library says of rows without keys.
    """

    def __init__(self, names: dict[str, str], empty: float, extra: int) -> None:
        self.names, self.empty, self.extra = names, empty, extra
        self.seen: dict[str, Any] = {}

    def __call__(self, q, k, v, **given: Any) -> tuple[Any, ...]:
        self.seen = given
        assert given[self.names["k_start"]].shape == given[self.names["cu_q"]].shape
        values = {ours: given[theirs] for ours, theirs in self.names.items()}
        values["k_start"] = values["k_start"][:-1]
        out, lse = attend_plain(q, k, v, **values)
        return out, torch.where(lse == -INF, self.empty, lse), *[None] * self.extra


FLASH = {
    "cu_q": "cu_seqlens_q",
    "k_start": "cu_seqlens_k",
    "max_q": "max_seqlen_q",
    "max_k": "max_seqlen_k",
    "k_used": "seqused_k",
    "scale": "softmax_scale",
    "causal": "causal",
}
INSIDE = {
    "cu_q": "cum_seq_q",
    "k_start": "cum_seq_k",
    "max_q": "max_q",
    "max_k": "max_k",
    "k_used": "seqused_k",
    "scale": "scale",
    "causal": "is_causal",
}
# Arguments beyond those mapped, that each library needs to be given.
CONSTANTS: dict[str, dict[str, Any]] = {
    FA3: {"return_attn_probs": True},
    FA2: {"dropout_p": 0.0},
    ATEN: {"dropout_p": 0.0, "return_debug_mask": False},
}


@pytest.fixture
def recorded(request, monkeypatch) -> tuple[str, Recorder]:
    """A backend whose library is a recorder."""
    name = request.param
    if name == ATEN:
        recorder = Recorder(INSIDE, INF, 3)
        monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", recorder)
        return name, recorder
    if name == FA3:
        recorder = Recorder(FLASH, -INF, 0)
        stand_in(monkeypatch, varlen.FA3_MODULE, flash_attn_varlen_func=recorder)
        return name, recorder
    recorder = Recorder(FLASH, INF, 2)
    stand_in(monkeypatch, varlen.FA2_MODULE, _flash_attn_varlen_forward=recorder)
    return name, recorder


def stand_in(monkeypatch, name: str, **functions: Any) -> None:
    for at in range(1, name.count(".") + 2):
        parent = ".".join(name.split(".")[:at])
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    for function, value in functions.items():
        setattr(sys.modules[name], function, value)


@pytest.mark.parametrize("recorded", [FA3, FA2, ATEN], indirect=True)
@pytest.mark.parametrize("causal", [False, True])
def test_what_a_library_is_asked_for(recorded, causal):
    name, recorder = recorded
    arguments = made(ENTRIES)
    out, lse = attends(name)(*arguments, causal)
    agree((out, lse), naive(arguments, causal), torch.float32)
    assert not (lse == INF).any()
    seen, names = recorder.seen, recorder.names
    assert set(seen) == set(names.values()) | set(CONSTANTS[name])
    assert {key: seen[key] for key in CONSTANTS[name]} == CONSTANTS[name]
    starts, used = seen[names["k_start"]], seen[names["k_used"]]
    assert starts.dtype == used.dtype == torch.int32
    assert starts[:-1].tolist() == [start for _, start, _ in ENTRIES]
    assert used.is_contiguous() and used.tolist() == [keys for _, _, keys in ENTRIES]
    assert (seen[names["max_q"]], seen[names["max_k"]]) == (140, 300)


@pytest.mark.parametrize("recorded", [FA2, ATEN], indirect=True)
def test_fa2_never_believes_that_entries_have_one_row(recorded):
    name, recorder = recorded
    attends(name)(*made([(1, 0, 5), (1, 2, 3)]), True)
    assert recorder.seen[recorder.names["max_q"]] == 2


@pytest.mark.parametrize("recorded", [FA3, FA2, ATEN], indirect=True)
@pytest.mark.parametrize("entries, total_k", [([], 9), ([(4, 0, 0)], 0), ([(4, 5, 0)], 9)], ids=str)
def test_a_library_is_not_called_for_nothing(recorded, entries, total_k):
    name, recorder = recorded
    out, lse = attends(name)(*made(entries, total_k=total_k), True)
    assert not recorder.seen
    assert (out == 0).all() and (lse == -INF).all() and lse.shape == (4, len(out))


def test_pytorch_has_the_arguments_that_are_passed():
    schema = torch.ops.aten._flash_attention_forward.default._schema
    names = {argument.name for argument in schema.arguments}
    assert names >= {"query", "key", "value", *INSIDE.values(), *CONSTANTS[ATEN]}
    assert [value.name for value in schema.returns][:2] == ["output", "softmax_logsumexp"]


@pytest.fixture
def machine(monkeypatch):
    """Make this process believe in a GPU, and in libraries or their absence."""
    best.cache_clear()

    def pretend(capability=(9, 0), fa3=True, fa2=True, hip=None, flash=True):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.version, "hip", hip)
        monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: flash)
        if fa3:
            stand_in(monkeypatch, varlen.FA3_MODULE, flash_attn_varlen_func=None)
        else:
            monkeypatch.setitem(sys.modules, varlen.FA3_MODULE, None)
        if fa2:
            stand_in(monkeypatch, varlen.FA2_MODULE, _flash_attn_varlen_forward=None)
        else:
            monkeypatch.setitem(sys.modules, varlen.FA2_MODULE, None)

    yield pretend
    best.cache_clear()


def chosen(dtype=torch.bfloat16, dim=128, device="cuda:0") -> tuple[str | None, str]:
    best.cache_clear()
    found = best(torch.device(device), dtype, dim)
    return found.backend.name if found.backend else None, found.reason


def test_the_fastest_library_is_taken(machine):
    machine()
    name, reason = chosen()
    assert name == FA3 and reason.startswith("FlashAttention 3")
    name, reason = chosen(torch.float16)
    assert name == FA2 and "fa3: the dtype is torch.float16, not bfloat16" in reason
    machine(capability=(8, 6))
    name, reason = chosen()
    assert name == FA2 and "fa3: the GPU is not of the Hopper generation (sm_90)" in reason
    machine(fa3=False, fa2=False)
    name, reason = chosen()
    assert name == ATEN and reason.startswith("PyTorch's flash kernel (torch ")


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "older than the Ampere generation": ({"capability": (7, 5)}, {}),
    "the device is ROCm, not CUDA": ({"hip": "6.4", "capability": (9, 4)}, {}),
    "the device is mps, not CUDA": ({}, {"device": "mps"}),
    "the dtype is torch.float32": ({}, {"dtype": torch.float32}),
    "head_dim is 264, not a multiple of 8 up to 256": ({}, {"dim": 264}),
    "head_dim is 20": ({}, {"dim": 20}),
    "this PyTorch was built without flash": ({"fa3": False, "fa2": False, "flash": False}, {}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_no_library_runs_is_said(message, machine):
    here, call = REFUSED[message]
    machine(**here)
    name, reason = chosen(**call)
    assert name is None and message in reason
    assert "plain: the device is" in reason


def test_a_cpu_takes_plain_torch():
    assert chosen(torch.float32, 20, "cpu") == (PLAIN, "plain torch on a CPU")


def test_a_library_that_does_not_fit_says_why(machine, monkeypatch):
    machine()
    imported = importlib.import_module

    def broken(name: str) -> Any:
        if name == varlen.FA3_MODULE:
            raise OSError("libcudart.so.13: cannot open shared object file")
        if name == varlen.FA2_MODULE:
            raise ModuleNotFoundError("No module named 'einops'", name="einops")
        return imported(name)

    monkeypatch.setattr(varlen, "import_module", broken)
    _, reason = chosen()
    assert "fa3-fwd cannot be imported: libcudart.so.13" in reason
    assert "flash-attn cannot be imported: No module named 'einops'" in reason
    monkeypatch.setattr(varlen, "import_module", lambda name: SimpleNamespace())
    assert "fa3-fwd has no flash_attn_varlen_func" in chosen()[1]


def test_a_library_that_is_not_installed(machine, monkeypatch):
    machine()

    def absent(name: str) -> Any:
        # flash-attn 4 alone leaves a package `flash_attn` without the module of version 2.
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(varlen, "import_module", absent)
    _, reason = chosen()
    assert "fa3: fa3-fwd is not installed; fa2: flash-attn is not installed" in reason
