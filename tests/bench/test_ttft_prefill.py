"""Prefills give the model's own logits, and say where their time goes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sift_index.bench.ttft_cases import CUDNN, FA3, SDPA, SIFT, Row
from sift_index.bench.ttft_laps import ATTENTION, UPLOAD, HostLaps, laps_of, prefill_clock
from sift_index.bench.ttft_prefill import sift_prefill
from sift_index.errors import UsageError
from tests.bench.ttft_problems import CASE, LONG_CASE, model, stage_of

CPU = torch.device("cpu")


def logits_of(stage) -> torch.Tensor:
    with torch.inference_mode():
        return model()(input_ids=stage.ids).logits[:, -1:]


def test_dense_is_the_model_itself():
    with stage_of() as stage:
        laps = HostLaps()
        found = stage.contender(Row(SDPA)).prefill(laps)
        assert found.shape == (1, 1, model().config.vocab_size)
        torch.testing.assert_close(found, logits_of(stage))
        assert set(laps.totals()) == {ATTENTION}


def test_peers_that_cannot_run_say_why():
    with stage_of() as stage:
        for kind in (FA3, CUDNN):
            with pytest.raises(UsageError, match="the device is cpu, not CUDA"):
                stage.contender(Row(kind))


@pytest.mark.parametrize("case", [CASE, LONG_CASE])
def test_sparse_runs_under_its_plan(case):
    with stage_of(case) as stage:
        contender = stage.contender(Row(SIFT, 0.1))
        laps = HostLaps()
        found = contender.prefill(laps)
        assert found.isfinite().all()
        assert not torch.allclose(found, logits_of(stage))
        assert set(laps.totals()) == {UPLOAD, ATTENTION}
        numbers = contender.numbers
        assert 0 < numbers["ca_density"] < 1 and numbers["density"] < 1
        assert (numbers["la_density"] < 1) == case.sparse_la
        # A bit for each page of 32 tokens, layer and head is the least that travels.
        assert numbers["metadata_bytes"] > 2 * 4 * (case.tokens - 128) // 32 // 8
        assert numbers["compose_ms"] > 0


def test_with_all_bits_on_sparse_is_dense():
    with stage_of() as stage:
        prompt = stage.random_prompt(0.1)
        masks = {}
        for key, row in prompt.masks.items():
            pages = row.ca.unpacked().shape
            packed = np.packbits(np.ones(pages, np.uint8), axis=-1)
            masks[key] = replace(row, ca=replace(row.ca, packed=packed))
        plan = replace(prompt, masks=masks).compose()
        found = sift_prefill(model(), stage.ids, plan)(HostLaps())
        torch.testing.assert_close(found, logits_of(stage), atol=1e-4, rtol=1e-4)


def test_laps_of_one_name_add_up():
    laps = HostLaps()
    for name in ("a", "b", "a"):
        with laps.lap(name):
            torch.ones(10_000).sum()
    assert set(laps.totals()) == {"a", "b"} and min(laps.totals().values()) > 0
    assert isinstance(laps_of(CPU), HostLaps)


def test_a_cpu_is_timed_by_the_wall():
    clock, seen = prefill_clock(CPU), []
    assert clock.wall(lambda: seen.append(1)) >= 0 and clock.gpu(lambda: seen.append(1)) >= 0
    assert seen == [1, 1]
