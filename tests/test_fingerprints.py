"""What shapes masks is in the build fingerprint, what must fit in the serve fingerprint."""

import json
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from sift_index import fingerprints
from sift_index.errors import FingerprintMismatchError, IntegrityError
from sift_index.fingerprints import (
    advisory_identity,
    begins_with_prefix,
    build_fingerprint,
    layout_from,
    prefix_digest,
    serve_identity,
    served_fingerprint,
)
from sift_index.formats.fingerprint import check_serve, require_same_build
from sift_index.models.loading import load_model
from sift_index.selection.policy import PaperPolicy, ProbePolicy
from sift_index.selection.rules import mask_layout
from tests.plans import TEMPLATE, layout_of, loaded, tiny
from tests.tiny import byte_tokenizer, tiny_model_of

MODEL = loaded(tiny("llama"))
POLICIES: dict[str, Any] = {
    "page_size": 16,
    "window": 32,
    "ca_thresholds": (0.002,),
    "la_window": 32,
    "la_thresholds": (0.0001,),
    "la_dense_tiles": 4,
    "head_sharing": "kv",
    "head_weights": ((1.0,) * 4, (0.5,) * 4),
    "skip_last_layer": False,
    "boundary": 256,
    "probe_rows": 512,
    "probe_tokens": 512,
}


def fingerprint(model=MODEL, policy=None, prefix=(1, 2), longest=4000):
    policy = policy or ProbePolicy()
    return build_fingerprint(
        model, policy, mask_layout(policy, model.geometry), list(prefix), longest
    )


def digest(**changes) -> str:
    return fingerprint(**changes).build_digest


def probes(folder, text: str) -> str:
    folder.mkdir()
    (folder / "a.txt").write_text(text)
    return str(folder)


def test_the_same_build_has_the_same_fingerprint():
    again = loaded(tiny("llama"))
    assert again.model is not MODEL.model
    assert fingerprint(again) == fingerprint()
    json.dumps(fingerprint().to_json())


@pytest.mark.parametrize("field", POLICIES)
def test_every_number_of_the_probe_policy_changes_the_build(field):
    assert digest(policy=replace(ProbePolicy(), **{field: POLICIES[field]})) != digest()


def test_no_field_of_the_probe_policy_is_forgotten():
    assert {field.name for field in fields(ProbePolicy)} == {*POLICIES, "probe_source"}


@pytest.mark.parametrize("field", ["alpha", "beta", "gamma"])
def test_every_number_of_the_paper_policy_changes_the_build(field):
    number: dict[str, Any] = {field: 0.5}
    policy = PaperPolicy()
    assert digest(policy=replace(policy, **number)) != digest(policy=policy) != digest()


def test_the_probe_texts_change_the_build(tmp_path):
    source = probes(tmp_path / "p", "one text")
    before = digest(policy=ProbePolicy(probe_source=source))
    assert digest(policy=ProbePolicy(probe_source=source)) == before
    (tmp_path / "p" / "a.txt").write_text("one more text")
    assert digest(policy=ProbePolicy(probe_source=source)) != before


@pytest.mark.parametrize("text", ["prefix", "span_prefix", "span_suffix"])
def test_texts_around_documents_change_the_build(text):
    other = replace(MODEL, prompt=replace(TEMPLATE, **{text: "other"}))
    assert digest(model=other) != digest()


def test_the_query_text_does_not_change_the_build():
    other = replace(MODEL, prompt=replace(TEMPLATE, query="Q: {question}"))
    assert digest(model=other) == digest()


def test_dtype_tokenizer_length_and_weights_change_the_build():
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<doc>"])
    others = {
        digest(model=loaded(tiny("llama").to(torch.bfloat16))),
        digest(model=replace(MODEL, tokenizer=tokenizer)),
        digest(longest=3999),
        digest(model=loaded(tiny_model_of("llama", seed=1))),
        digest(model=loaded(tiny("llama", rope_theta=999.0))),
        digest(),
    }
    assert len(others) == 6


def test_an_append_with_other_settings_names_the_fields():
    other = fingerprint(policy=ProbePolicy(window=32))
    with pytest.raises(FingerprintMismatchError, match=r"build\.policy\.window: index has 1,"):
        require_same_build(fingerprint(), other)


def test_the_prefix_is_advisory_by_its_tokens():
    one, other = fingerprint(prefix=(1, 2)), fingerprint(prefix=(1, 3))
    assert one.build_digest == other.build_digest
    assert one.advisory["prefix"] == prefix_digest([1, 2]) != other.advisory["prefix"]
    assert prefix_digest([]) != prefix_digest([0])


def test_the_model_of_the_build_serves_without_warnings():
    built = fingerprint()
    assert check_serve(built, served_fingerprint(built, MODEL.model, MODEL.tokenizer)) == []


def test_context_is_no_reason_to_refuse():
    built = fingerprint()
    other = tiny("llama", max_position_embeddings=8192)
    assert check_serve(built, served_fingerprint(built, other, None)) == []


def test_one_checkpoint_in_another_dtype_serves_with_a_warning(tiny_model_dir):
    built = fingerprint(load_model(str(tiny_model_dir), "float32", "cpu"))
    half = load_model(str(tiny_model_dir), "bfloat16", "cpu").model
    found = check_serve(built, served_fingerprint(built, half, None))
    assert found == ["advisory.dtype: index has 'float32', model has 'bfloat16'"]


@pytest.mark.parametrize(
    ("field", "overrides"),
    [
        ("architecture.layers", {"num_hidden_layers": 3}),
        ("architecture.heads", {"num_attention_heads": 8}),
        ("architecture.kv_heads", {"num_key_value_heads": 4}),
        ("architecture.head_dim", {"head_dim": 32}),
        ("architecture.hidden_size", {"hidden_size": 96}),
        ("architecture.vocab_size", {"vocab_size": 400}),
        ("rope.rope_theta", {"rope_theta": 999.0}),
        ("weights", {"seed": 4}),
    ],
)
def test_another_model_is_refused_by_the_field(field, overrides):
    built = fingerprint()
    other = tiny("llama", **overrides)
    with pytest.raises(FingerprintMismatchError, match=rf"serve\.{field}: index has"):
        check_serve(built, served_fingerprint(built, other, None))


def test_the_layout_comes_back_from_the_serve_grade():
    layout = layout_of(MODEL.model, page_size=16, levels=2, mask_heads=2, boundary=0)
    assert layout_from(serve_identity(MODEL.model, layout)) == layout


def test_probe_texts_count_not_their_place(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "probe.txt").write_text("word " * 400)
    first, second = (ProbePolicy(probe_source=str(tmp_path / folder)) for folder in ("a", "b"))
    assert digest(policy=first) == digest(policy=second) != digest(policy=ProbePolicy())


@pytest.mark.parametrize("serve", [{}, {"layout": None}, {"layout": {"tile": 128, "colour": 1}}])
def test_a_layout_of_another_program_is_a_named_error(serve: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError, match=r"serve\.layout with tile, layers, heads"):
        layout_from(serve)


def test_a_prefix_is_found_at_the_beginning_of_more():
    ids = [7, 70000, 3, 5]
    for length in range(5):
        assert begins_with_prefix(ids, prefix_digest(ids[:length]))
    for other in ([70000], [7, 3], [*ids, 1]):
        assert not begins_with_prefix(ids, prefix_digest(other))


def test_versions_are_read_once(monkeypatch):
    """They are compared with every prompt, and each takes milliseconds to read."""
    expected = advisory_identity(MODEL.model, None)

    def read(package: str) -> str:
        raise AssertionError(package)

    monkeypatch.setattr(fingerprints, "version", read)
    assert advisory_identity(MODEL.model, None) == expected
