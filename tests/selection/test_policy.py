"""Policies: packaged, from files and from values; every bad value is refused by name."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from sift_index.errors import UsageError
from sift_index.models.geometry import geometry_of
from sift_index.selection.policy import (
    PaperPolicy,
    ProbePolicy,
    load_policy,
    policy_from,
    policy_names,
    policy_values,
)
from sift_index.selection.rules import mask_layout
from tests.plans import tiny

BAD: dict[str, dict[str, list[Any]]] = {
    "probe": {
        "page_size": [0, 7, 256, "32", 32.0, None, True],
        "window": [0, 3, 63, 256, 64.0, "64", True, None],
        "la_window": [0, 3, 63, 256, 1.0, "64", True, None],
        "ca_thresholds": [0.001, None, [], [0.1, 0.1, 0.1, 0.1], [0.2, 0.1], [0.0], [1.0], ["x"]],
        "la_thresholds": [0.1, {}, [-0.1], [float("nan")], "0.1", [True]],
        "la_dense_tiles": [-1, 1.5, "8", True, None],
        "head_sharing": ["none", None, 1],
        "head_weights": [
            *(None, "x", 1.0, {}, [1.0], [1.0, [1.0]], [[]], [[1.0], []], [[1.0, 2.0], [1.0]]),
            *([[1]], [[True]], [["1.0"]], [[None]], [[[1.0]]], [[{}]]),
            *([[-0.1]], [[float("nan")]], [[1.0, float("inf")]]),
        ],
        "skip_last_layer": [1, 0, 1.0, "true", None, []],
        "boundary": [-1, 32, 1024, 128.0, "128", None, False],
        "probe_source": [None, 3, ""],
        "probe_rows": [0, -1, "1088", 1088.0, True],
        "probe_tokens": [0, -1, True, "64", 64.0],
    },
    "paper": {
        "page_size": [32, 128.0],
        "alpha": [0, 1.0, "0.1", None, {}],
        "beta": [-0.1, True],
        "gamma": [2.0, {}],
        "normalisation": ["later", "", None, 1, True, ["earlier"]],
    },
}
CASES = [(r, f, v) for r, by_field in BAD.items() for f, values in by_field.items() for v in values]


def test_the_packaged_policies_load():
    assert policy_names() == ["paper", "paper-fixed", "probe"]
    assert load_policy("probe") == ProbePolicy()
    paper = PaperPolicy(alpha=0.001, beta=0.01, gamma=0.1, normalisation="earlier")
    assert load_policy("paper") == paper == PaperPolicy()
    assert load_policy("paper-fixed") == replace(paper, normalisation="remaining")


@pytest.mark.parametrize(
    "policy",
    [
        ProbePolicy(),
        ProbePolicy(
            page_size=8,
            window=16,
            ca_thresholds=(0.1, 0.2, 0.3),
            la_window=1,
            la_thresholds=(0.1,),
            la_dense_tiles=0,
            head_sharing="kv",
            head_weights=((0.5, 2.0), (1.0, 0.0)),
            skip_last_layer=False,
            boundary=0,
            probe_source="texts",
            probe_rows=64,
            probe_tokens=128,
        ),
        PaperPolicy(alpha=0.5, normalisation="remaining"),
    ],
)
def test_values_round_trip_through_json(policy):
    values = policy_values(policy)
    assert json.loads(json.dumps(values)) == values  # lists, as a manifest gives them back
    assert policy_from(values) == policy


def test_every_bad_value_of_every_field_is_listed_here():
    for kind in (ProbePolicy, PaperPolicy):
        assert {field.name for field in fields(kind)} == set(BAD[kind.rule])


@pytest.mark.parametrize(("rule", "field", "value"), CASES)
def test_a_bad_value_is_refused_naming_field_and_value(rule, field, value):
    with pytest.raises(UsageError) as caught:
        policy_from({"rule": rule, field: value})
    assert f"expected {field} " in str(caught.value)
    shown = (repr(value), str(as_tuples(value))[:60])
    assert str(caught.value).endswith(tuple(f"found {text}" for text in shown))


def as_tuples(value: Any) -> Any:
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def test_a_wrong_number_far_into_a_table_is_refused_in_a_short_message():
    table = [[1.0] * 40] * 30 + [[1.0] * 39 + [-1.0]]
    with pytest.raises(
        UsageError, match="a list per layer of one decimal number from 0 per"
    ) as caught:
        policy_from({"rule": "probe", "head_weights": table})
    assert len(str(caught.value)) < 250
    table[-1] = table[0]
    policy = policy_from({"rule": "probe", "head_weights": table})
    assert isinstance(policy, ProbePolicy)
    assert policy.head_weights == ((1.0,) * 40,) * 31


@pytest.mark.parametrize("window", [1, 2, 4, 8, 16, 32, 64, 128])
@pytest.mark.parametrize("field", ["window", "la_window"])
def test_windows_are_powers_of_two_up_to_a_tile(field, window):
    found = policy_from({"rule": "probe", field: window})
    assert found == replace(ProbePolicy(), **{field: window})


def test_a_window_larger_than_the_probe_rows_is_refused():
    with pytest.raises(UsageError, match="probe_rows as a whole number from 128, found 64"):
        ProbePolicy(window=128, probe_rows=64)
    with pytest.raises(UsageError, match="probe_tokens as a whole number from 64, found 63"):
        ProbePolicy(window=64, probe_tokens=63)
    assert ProbePolicy(window=1, la_window=128, probe_rows=1, probe_tokens=1).probe_rows == 1


@pytest.mark.parametrize("rule", [None, "nonsense", 3, ["probe"], {}])
def test_an_unknown_rule_is_refused(rule):
    with pytest.raises(UsageError, match="expected a policy rule of probe, paper, found"):
        policy_from({"rule": rule})


def test_unknown_fields_are_refused_by_name():
    with pytest.raises(UsageError, match="'paper' has no field 7, window; it has alpha, beta"):
        values: dict[Any, Any] = {"rule": "paper", "window": 64, 7: 1}
        policy_from(values)


def test_a_policy_from_a_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("rule: probe\npage_size: 16\nca_thresholds: [0.001, 0.01]\n")
    assert load_policy(str(path)) == ProbePolicy(page_size=16, ca_thresholds=(0.001, 0.01))
    path.write_text(
        "rule: probe\nskip_last_layer: false\nhead_weights:\n- [0.5, 2.0]\n- [1.0, 0.0]\n"
    )
    assert load_policy(str(path)) == ProbePolicy(
        skip_last_layer=False, head_weights=((0.5, 2.0), (1.0, 0.0))
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"- 1\n- 2\n", "expected a YAML mapping, found list"),
        (b"rule: [probe\n", "expected a YAML mapping in UTF-8, found"),
        (b"rule: \xff\xfe\n", "expected a YAML mapping in UTF-8, found"),
        (b"rule: probe\npage_size: 33\n", "page_size of 8, 16, 32, 64, 128, found 33"),
        (b"rule: probe\nca_thresholds: [1e-3]\n", "'1e-3'"),  # a text in YAML
    ],
)
def test_a_bad_file_is_refused(tmp_path, content, message):
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        load_policy(str(path))
    assert message in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    def refuse(path: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "mine.yaml").touch()
    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(UsageError, match=r"mine.yaml cannot be read: .*Permission denied"):
        load_policy(str(tmp_path / "mine.yaml"))


def test_a_missing_file_is_refused_listing_the_packaged_ones():
    with pytest.raises(UsageError, match=r"a policy \(paper, paper-fixed, probe\) or a YAML file"):
        load_policy("none")


def test_levels_follow_the_longer_list_and_the_shorter_repeats_its_last():
    policy = ProbePolicy(ca_thresholds=(0.1, 0.2, 0.3), la_thresholds=(0.05,))
    assert policy.levels == 2
    assert policy.ca_levels == (0.1, 0.2, 0.3)
    assert policy.la_levels == (0.05, 0.05, 0.05)
    assert replace(policy, ca_thresholds=(0.1,)).levels == 1
    assert ProbePolicy(ca_thresholds=(0.1,)).ca_levels == (0.1,)


def test_a_relative_probe_source_is_meant_from_the_policy_file(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("rule: probe\nprobe_source: texts\n")
    monkeypatch.chdir("/")
    policy = load_policy(str(tmp_path / "mine.yaml"))
    assert isinstance(policy, ProbePolicy)
    assert policy.probe_source == str(tmp_path / "texts")


@pytest.mark.parametrize("source", ["corpus", "builtin"])
def test_a_named_probe_source_is_no_path(tmp_path, source):
    path = tmp_path / "mine.yaml"
    path.write_text(f"rule: probe\nprobe_source: {source}\n")
    assert load_policy(str(path)) == replace(ProbePolicy(), probe_source=source)
    path.write_text(f"rule: probe\nprobe_source: ./{source}\n")
    policy = load_policy(str(path))
    assert isinstance(policy, ProbePolicy)
    assert policy.probe_source == str(tmp_path / source)


@pytest.mark.parametrize("boundary", [0, 64, 128, 256, 512])
def test_the_boundary_goes_into_the_layout(boundary):
    geometry = geometry_of(tiny("llama").config)
    policy = ProbePolicy(boundary=boundary)
    assert mask_layout(policy, geometry) == replace(
        mask_layout(ProbePolicy(), geometry), boundary=boundary
    )
    assert mask_layout(PaperPolicy(), geometry).boundary == 0
