"""Reused KV: loaded in order, put where it belongs, and enough to give the model's own logits."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sift_index.adapters.hf_calls import cache_of
from sift_index.bench import ttft_disk
from sift_index.bench.ttft_cases import CACHEBLEND, DISK, DRAM, KV_REUSE, Row, TTFTCase
from sift_index.bench.ttft_disk import DIRECT, DROPPED, OnDisk
from sift_index.bench.ttft_kv import BLOCK, HostKV, InMemory, Loading
from sift_index.bench.ttft_laps import ATTENTION, LOAD, WAIT, HostLaps
from sift_index.bench.ttft_reuse import ReusePrefill, fresh_runs
from sift_index.errors import UsageError
from sift_index.models.geometry import geometry_of
from tests.bench.ttft_problems import CASE, model, stage_of

CPU = torch.device("cpu")


def stored_kv(ids: torch.Tensor) -> tuple[HostKV, torch.Tensor, list[Any]]:
    """Return KV of a dense prefill of these ids, its last logits, and its cache by layer."""
    with torch.inference_mode():
        out = model()(input_ids=ids, use_cache=True)
    cache = [(layer.keys[0], layer.values[0]) for layer in cache_of(out).layers]
    first, last = CASE.spans[0][0], CASE.spans[-1][1]
    kv = HostKV(geometry_of(model().config), last - first, torch.float32, pinned=False)
    for block, layer in zip(kv.layers, cache, strict=True):
        for part, tensor in zip(block, layer, strict=True):
            part.copy_(tensor.transpose(0, 1)[first:last])
    return kv, out.logits[:, -1:], cache


def test_full_reuse_computes_glue_alone():
    assert fresh_runs(CASE, 0.0) == [(0, 64), (536, 600)]


def test_blending_computes_15_percent_of_each_document():
    case = TTFTCase(2176, 1024)
    assert fresh_runs(case, 0.15) == [(0, 64 + 154), (1088, 1088 + 154), (2112, 2176)]
    computed = sum(stop - start for start, stop in fresh_runs(case, 0.15)) - 128
    assert computed / 2048 == pytest.approx(0.15, abs=0.001)


@pytest.mark.parametrize("share", [0.0, 0.15, 1.0])
@pytest.mark.parametrize("store", [DRAM, DISK])
def test_with_the_models_own_kv_reuse_is_dense(share, store, tmp_path):
    with stage_of() as stage:
        kv, logits, cache = stored_kv(stage.ids)
        source = OnDisk(kv, tmp_path) if store == DISK else InMemory(kv)
        if store == DISK:
            for block in kv.blocks:  # only what comes from the files counts
                block.fill_(0)
        prefill, laps = ReusePrefill(model(), stage.ids, CASE, share, source), HostLaps()
        found, loading = prefill.run(laps)
        torch.testing.assert_close(found, logits, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(prefill(HostLaps()), logits, atol=1e-4, rtol=1e-4)
        for layer, (keys, values) in enumerate(cache):
            kept = (loading.keys[layer], loading.values[layer])
            for mine, theirs in zip(kept, (keys, values), strict=True):
                assert mine.transpose(0, 1).shape == theirs.shape
                torch.testing.assert_close(mine.transpose(0, 1), theirs, atol=1e-4, rtol=1e-4)
        assert set(laps.totals()) == {LOAD, WAIT, ATTENTION}
        if isinstance(source, OnDisk):
            source.close()


def test_other_kv_gives_other_logits():
    with stage_of() as stage:
        kv, logits, _ = stored_kv(stage.ids)
        kv.fill(CPU)
        found = ReusePrefill(model(), stage.ids, CASE, 0.0, InMemory(kv))(HostLaps())
        assert not torch.allclose(found, logits, atol=1e-2)


def test_rows_share_stored_kv_and_files_are_removed(tmp_path):
    with stage_of(disk=tmp_path) as stage:
        rows = [Row(kind, store=store) for kind in (KV_REUSE, CACHEBLEND) for store in (DRAM, DISK)]
        found = [stage.contender(row) for row in rows]
        [folder] = tmp_path.iterdir()
        assert len(list(folder.iterdir())) == 2
        numbers = [contender.numbers for contender in found]
        # Keys and values of 472 tokens, 2 layers and 2 heads of 64 numbers of 4 bytes.
        assert {each["kv_bytes"] for each in numbers} == {2 * 472 * 2 * 2 * 64 * 4}
        assert numbers[0]["computed_share"] == 128 / 600 < numbers[2]["computed_share"]
        assert "KV files are read with" in found[1].note and not found[0].note
    assert not list(tmp_path.iterdir())


def test_without_a_folder_there_is_no_disk():
    with stage_of() as stage, pytest.raises(UsageError, match="expected --kv-disk"):
        stage.contender(Row(KV_REUSE, store=DISK))


def test_blocks_are_aligned_for_direct_reads():
    kv = HostKV(geometry_of(model().config), 100, torch.bfloat16, pinned=False)
    assert all(block.data_ptr() % BLOCK == 0 and block.nbytes % BLOCK == 0 for block in kv.blocks)
    assert kv.layers[0].shape == (2, 100, 2, 64)


def test_where_direct_reads_are_refused_the_page_cache_is_dropped(tmp_path, monkeypatch):
    real, dropped = os.open, []

    def without_direct(path, flags, *rest, **more):
        if flags & os.O_DIRECT:
            raise OSError("no direct reads here")
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", without_direct)
    monkeypatch.setattr(os, "posix_fadvise", lambda *given: dropped.append(given))
    monkeypatch.setattr(ttft_disk, "CHUNK", BLOCK)
    kv = HostKV(geometry_of(model().config), 100, torch.float32, pinned=False)
    kv.fill(CPU)
    wanted = [layer.clone() for layer in kv.layers]
    disk = OnDisk(kv, tmp_path)
    assert disk.mode == DROPPED != DIRECT
    for block in kv.blocks:
        block.fill_(0)
    laps = HostLaps()
    loading = Loading(disk, 150, 50, CPU, laps)
    for layer, (keys, values) in enumerate(wanted):
        mine = loading.wait(layer)
        assert torch.equal(mine[0][50:], keys) and torch.equal(mine[1][50:], values)
    loading.close()
    disk.close()
    assert len(dropped) == 2  # a file for each layer


def test_a_file_cut_short_is_an_error(tmp_path):
    kv = HostKV(geometry_of(model().config), 100, torch.float32, pinned=False)
    disk = OnDisk(kv, tmp_path)
    [folder] = tmp_path.iterdir()
    for path in folder.iterdir():
        os.truncate(path, BLOCK)
    loading = Loading(disk, 100, 0, CPU, HostLaps())
    with pytest.raises(OSError, match="found the file's end"):
        loading.wait(0)
    loading.close()
    disk.close()


def test_a_full_disk_is_said(tmp_path, monkeypatch):
    full = SimpleNamespace(free=1)
    monkeypatch.setattr(ttft_disk, "shutil", SimpleNamespace(disk_usage=lambda folder: full))
    kv = HostKV(geometry_of(model().config), 10, torch.float32, pinned=False)
    with pytest.raises(UsageError, match=r"--kv-disk: expected .* GB of free disk, found 0\.0 GB"):
        OnDisk(kv, tmp_path)
    assert not list(tmp_path.iterdir())
