"""Policies: packaged, from files and from values; every bad value is refused by name."""

from dataclasses import fields, replace
from typing import Any

import pytest

from sift_index.errors import UsageError
from sift_index.selection.policy import (
    PaperPolicy,
    ProbePolicy,
    load_policy,
    policy_from,
    policy_names,
    policy_values,
)

BAD: dict[str, dict[str, list[Any]]] = {
    "probe": {
        "page_size": [0, 7, 256, "32", 32.0, None, True],
        "window": [0, 63, 256, 64.0, "64"],
        "ca_thresholds": [0.001, None, [], [0.1, 0.1, 0.1, 0.1], [0.2, 0.1], [0.0], [1.0], ["x"]],
        "la_thresholds": [0.1, {}, [-0.1], [float("nan")], "0.1", [True]],
        "la_dense_tiles": [-1, 1.5, "8", True, None],
        "head_sharing": ["none", None, 1],
        "probe_source": [None, 3, ""],
        "probe_rows": [63, 0, "1088", 1088.0],
        "probe_tokens": [63, -1, True],
    },
    "paper": {
        "page_size": [32, 128.0],
        "alpha": [0, 1.0, "0.1", None, {}],
        "beta": [-0.1, True],
        "gamma": [2.0, {}],
    },
}
CASES = [(r, f, v) for r, by_field in BAD.items() for f, values in by_field.items() for v in values]


def test_the_packaged_policies_load():
    assert policy_names() == ["paper", "probe"]
    assert load_policy("probe") == ProbePolicy()
    assert load_policy("paper") == PaperPolicy(alpha=0.001, beta=0.01, gamma=0.1)


@pytest.mark.parametrize(
    "policy",
    [
        ProbePolicy(),
        ProbePolicy(8, 16, (0.1, 0.2, 0.3), (0.1,), 0, "kv", "texts", 64, 128),
        PaperPolicy(alpha=0.5),
    ],
)
def test_values_round_trip(policy):
    assert policy_from(policy_values(policy)) == policy


def test_every_bad_value_of_every_field_is_listed_here():
    for kind in (ProbePolicy, PaperPolicy):
        assert {field.name for field in fields(kind)} == set(BAD[kind.rule])


@pytest.mark.parametrize(("rule", "field", "value"), CASES)
def test_a_bad_value_is_refused_naming_field_and_value(rule, field, value):
    with pytest.raises(UsageError) as caught:
        policy_from({"rule": rule, field: value})
    assert field in str(caught.value)
    assert repr(value) in str(caught.value)


def test_a_window_larger_than_the_probe_rows_is_refused():
    with pytest.raises(UsageError, match="probe_rows as a whole number from 128, found 64"):
        ProbePolicy(window=128, probe_rows=64)


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


def test_a_missing_file_is_refused_listing_the_packaged_ones():
    with pytest.raises(UsageError, match=r"a policy \(paper, probe\) or a YAML file, found 'none'"):
        load_policy("none")


def test_levels_follow_the_longer_list_and_the_shorter_repeats_its_last():
    policy = ProbePolicy(ca_thresholds=(0.1, 0.2, 0.3), la_thresholds=(0.05,))
    assert policy.levels == 2
    assert policy.level_thresholds(policy.ca_thresholds) == (0.1, 0.2, 0.3)
    assert policy.level_thresholds(policy.la_thresholds) == (0.05, 0.05, 0.05)
    assert replace(policy, ca_thresholds=(0.1,)).levels == 1
    assert ProbePolicy().level_thresholds((0.1,)) == (0.1,)


def test_a_relative_probe_source_is_meant_from_the_policy_file(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("rule: probe\nprobe_source: texts\n")
    monkeypatch.chdir("/")
    policy = load_policy(str(tmp_path / "mine.yaml"))
    assert isinstance(policy, ProbePolicy)
    assert policy.probe_source == str(tmp_path / "texts")
