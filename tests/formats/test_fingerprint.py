from __future__ import annotations

from dataclasses import replace

import pytest

from sift_index.formats.errors import FingerprintMismatchError, IntegrityError, UsageError
from sift_index.formats.fields import Fields
from sift_index.formats.fingerprint import (
    Fingerprint,
    check_serve,
    differences,
    require_same_build,
)

INDEX = Fingerprint(
    {"policy": {"name": "probe", "theta": 0.5}, "page": 32},
    {"layers": 32, "rope": {"theta": 10000.0, "scaling": None}, "weights": "aaaa"},
    {"dtype": "bfloat16", "quantisation": None, "prefix": "hello"},
)


def test_json_keeps_values_and_digests() -> None:
    again = Fingerprint.from_json(Fields(INDEX.to_json(), "test"))
    assert again == INDEX
    assert (again.build_digest, again.serve_digest) == (INDEX.build_digest, INDEX.serve_digest)
    assert len(INDEX.build_digest) == 32
    assert INDEX.build_digest != INDEX.serve_digest


def test_digests_ignore_the_order_of_fields_and_advice() -> None:
    other = replace(INDEX, build=dict(sorted(INDEX.build.items())), advisory={})
    assert other.build_digest == INDEX.build_digest


def test_differences_name_nested_fields() -> None:
    model = {"layers": 30, "rope": {"theta": 10000.0}, "heads": 4}
    assert differences(INDEX.serve, model) == [
        "serve.heads: index has nothing, model has 4",
        "serve.layers: index has 32, model has 30",
        "serve.rope.scaling: index has None, model has nothing",
        "serve.weights: index has 'aaaa', model has nothing",
    ]


def test_differences_agree_with_digests_on_spelling() -> None:
    assert differences({"a": 1}, {"a": 1.0}) == ["serve.a: index has 1, model has 1.0"]
    assert differences({"a": (1, 2)}, {"a": [1, 2]}) == []
    assert differences({"a": {}}, {"a": 0}) == ["serve.a: index has {}, model has 0"]


def test_another_build_is_refused_with_every_field() -> None:
    require_same_build(INDEX, replace(INDEX, serve={}, advisory={}))
    wanted = replace(INDEX, build={"policy": {"name": "paper", "theta": 0.5}, "page": 128})
    with pytest.raises(FingerprintMismatchError) as caught:
        require_same_build(INDEX, wanted)
    assert "build.page: index has 32, this build has 128" in str(caught.value)
    assert "build.policy.name: index has 'probe', this build has 'paper'" in str(caught.value)


def test_another_model_is_refused_with_every_field() -> None:
    model = replace(INDEX, serve={**INDEX.serve, "layers": 30, "weights": "bbbb"})
    with pytest.raises(FingerprintMismatchError) as caught:
        check_serve(INDEX, model)
    assert "serve.layers" in str(caught.value)
    assert "serve.weights" in str(caught.value)


def test_other_weights_of_the_same_declared_dtype_are_refused() -> None:
    model = replace(INDEX, serve={**INDEX.serve, "weights": "bbbb"})
    prefix = replace(model, advisory={**INDEX.advisory, "prefix": "other"})
    for found in (model, prefix):
        with pytest.raises(FingerprintMismatchError, match="serve.weights"):
            check_serve(INDEX, found)


@pytest.mark.parametrize("field", ["dtype", "quantisation"])
def test_a_repacked_checkpoint_is_advisory(field: str) -> None:
    serve = {**INDEX.serve, "weights": "bbbb"}
    model = Fingerprint(INDEX.build, serve, {**INDEX.advisory, field: "int8"})
    warnings = check_serve(INDEX, model)
    assert [line.split(":")[0] for line in warnings] == ["serve.weights", f"advisory.{field}"]
    with pytest.raises(FingerprintMismatchError, match="serve.weights"):
        check_serve(INDEX, model, strict=True)
    larger = replace(model, serve={**serve, "layers": 33})
    with pytest.raises(FingerprintMismatchError, match="serve.layers"):
        check_serve(INDEX, larger)


def test_advice_warns_and_refuses_when_strict() -> None:
    model = replace(INDEX, advisory={**INDEX.advisory, "prefix": "other"})
    line = "advisory.prefix: index has 'hello', model has 'other'"
    assert check_serve(INDEX, model) == [line]
    with pytest.raises(FingerprintMismatchError, match="advisory.prefix"):
        check_serve(INDEX, model, strict=True)
    assert check_serve(INDEX, INDEX, strict=True) == []


def test_a_missing_grade_and_values_that_are_no_json_are_refused() -> None:
    with pytest.raises(IntegrityError, match="serve"):
        Fingerprint.from_json(Fields({"build": {}, "advisory": {}}, "manifest"))
    with pytest.raises(UsageError):
        _ = Fingerprint({"x": float("nan")}, {}).build_digest
