"""The probe bank: its texts, its windows and what it refuses."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sift_index.errors import UsageError
from sift_index.selection.policy import ProbePolicy
from sift_index.selection.probe_bank import build_bank
from sift_index.selection.probes import probe_digest, probe_texts
from tests.plans import loaded, tiny, tokens
from tests.selection.observed import observe, write_probes

PREFIX = tokens(11, seed=5)


def policy_of(source: str, **changes) -> ProbePolicy:
    return ProbePolicy(**{"window": 16, "probe_source": source, "probe_tokens": 200, **changes})


def windows_of(model, source: str, layer: int, size: int) -> list[tuple[int, int, torch.Tensor]]:
    """Return (probe, window, queries) of every whole window, from full-attention runs."""
    tokenizer, found = loaded(model).tokenizer, []
    for number, file in enumerate(sorted(Path(source).glob("*.txt"))):
        ids = tokenizer(file.read_text(), add_special_tokens=False).input_ids
        q = observe(model, [*PREFIX, *ids]).q[layer][:, len(PREFIX) :]
        found += [(number, w, q[:, w * size : (w + 1) * size]) for w in range(len(ids) // size)]
    return found


def chosen(model, source: str, policy: ProbePolicy, layer: int = 1) -> list[tuple[int, int]]:
    """Return which windows a bank kept; each must be one whole window of one probe."""
    bank = build_bank(loaded(model), policy, PREFIX).layers[layer]
    every = windows_of(model, source, layer, policy.window)
    found = []
    for part in bank.q.split(policy.window, dim=1):
        close = [(p, w) for p, w, q in every if torch.allclose(q, part, atol=1e-3)]
        assert len(close) == 1
        found += close
    return found


def test_all_windows_are_kept_where_there_are_few(tmp_path):
    source = write_probes(tmp_path / "p", (40, 100, 79))
    found = chosen(tiny("llama"), source, policy_of(source))
    assert found == [(0, 0), (0, 1), *((1, w) for w in range(6)), *((2, w) for w in range(4))]


def test_fewer_windows_are_spread_evenly_over_all_probes(tmp_path):
    source = write_probes(tmp_path / "p", (160, 320))  # 10 and 20 windows
    found = chosen(tiny("llama"), source, policy_of(source, probe_tokens=320, probe_rows=100))
    assert len(found) == 6  # whole windows only: 96 of 100 rows
    assert [p for p, _ in found].count(0) == 2
    places = [w + 10 * p for p, w in found]
    assert places == sorted(places)
    assert {b - a for a, b in zip(places, places[1:], strict=False)} == {5}


def test_a_probe_may_have_no_window_among_the_chosen(tmp_path):
    source = write_probes(tmp_path / "p", (200, 16, 200))
    found = chosen(tiny("llama"), source, policy_of(source, probe_rows=32))
    assert {p for p, _ in found} == {0, 2}


def test_log_sum_exp_covers_prefix_and_probe(tmp_path):
    source = write_probes(tmp_path / "p", (48,))
    model = tiny("llama")
    bank = build_bank(loaded(model), policy_of(source), PREFIX)
    ids = loaded(model).tokenizer((Path(source) / "0.txt").read_text()).input_ids
    seen = observe(model, [*PREFIX, *ids])
    for layer, kept in enumerate(bank.layers):
        scores = torch.from_numpy(seen.scores(layer))
        lower = torch.ones(scores.shape[1:], dtype=torch.bool).tril()
        expected = scores.masked_fill(~lower, float("-inf")).logsumexp(-1)[:, len(PREFIX) :]
        torch.testing.assert_close(kept.lse, expected.float(), atol=1e-4, rtol=1e-5)


def test_the_packaged_texts_fill_the_default_bank():
    texts = probe_texts("builtin")
    assert len(texts) == 4
    assert all(len(text) > 4000 for text in texts)
    bank = build_bank(loaded(tiny("llama")), ProbePolicy(), [])
    assert bank.layers[0].q.shape == (4, 1088, 16)
    assert bank.layers[0].lse.shape == (4, 1088)


def test_a_file_is_one_probe(tmp_path):
    path = tmp_path / "probe.md"
    path.write_text("one text")
    assert probe_texts(str(path)) == ["one text"]


@pytest.mark.parametrize("name", ["missing.txt", "empty"])
def test_a_source_without_texts_is_refused(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="a text file or a folder of .txt files, found"):
        probe_texts(str(tmp_path / name))


def test_texts_that_are_not_utf8_are_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UsageError, match="not UTF-8"):
        probe_texts(str(tmp_path))


def test_a_text_shorter_than_a_window_is_refused(tmp_path):
    source = write_probes(tmp_path / "p", (200, 15))
    with pytest.raises(UsageError, match="at least 16 tokens .one window., found one of 15"):
        build_bank(loaded(tiny("llama")), policy_of(source), PREFIX)


def test_a_probe_that_does_not_fit_the_context_is_refused(tmp_path):
    source = write_probes(tmp_path / "p", (200,))
    model = tiny("llama", max_position_embeddings=210)
    with pytest.raises(UsageError, match="200 tokens behind a prefix of 11.*context of 210"):
        build_bank(loaded(model), policy_of(source), PREFIX)
    assert build_bank(loaded(model), policy_of(source, probe_tokens=199), PREFIX)


def test_tokens_that_the_model_does_not_know_are_refused(tmp_path):
    """As where a tokenizer of another model lies in the folder; a GPU would end the process."""
    policy, small = policy_of(write_probes(tmp_path / "p", (200,))), tiny("llama", vocab_size=258)
    assert build_bank(loaded(small), policy, [257])
    with pytest.raises(UsageError, match="vocabulary size 258, found 258; use the tokenizer"):
        build_bank(loaded(small), policy, [258])
    small = tiny("llama", vocab_size=50, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    with pytest.raises(UsageError, match="vocabulary size 50, found"):
        build_bank(loaded(small), policy, [1])


def test_the_digest_follows_the_texts_and_their_borders(tmp_path):
    def digest(*texts: str) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for number, text in enumerate(texts):
            (folder / f"{number}.txt").write_text(text)
        return probe_digest(ProbePolicy(probe_source=str(folder)))

    assert digest("ab", "c") == digest("ab", "c")
    assert len({digest("ab", "c"), digest("a", "bc"), digest("abc"), digest("ab", "d")}) == 4
    assert probe_digest(replace(ProbePolicy(), window=32)) == probe_digest(ProbePolicy())
