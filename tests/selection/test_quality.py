"""Measured quality in policy files: every malformed field is refused by name."""

from typing import Any

import pytest
import yaml

from sift_index.errors import UsageError
from sift_index.selection.policy import (
    ProbePolicy,
    load_policy,
    policy_from,
    policy_names,
    policy_values,
    read_policy,
)
from sift_index.selection.quality import quality_entries, quality_for, quality_line
from tests.plans import QUALITY


def policy_file(folder, **values):
    path = folder / "p.yaml"
    path.write_text(yaml.safe_dump({"rule": "probe", "page_size": 64, **values}))
    return str(path)


def test_a_policy_file_carries_its_quality(tmp_path):
    name = policy_file(tmp_path, quality=[QUALITY, {**QUALITY, "model": "other"}])
    found = read_policy(name)
    assert found.policy == ProbePolicy(page_size=64) == load_policy(name)
    assert found.quality == (QUALITY, {**QUALITY, "model": "other"})


@pytest.mark.parametrize("quality", [{}, {"quality": None}, {"quality": []}])
def test_quality_may_be_left_out(tmp_path, quality):
    assert read_policy(policy_file(tmp_path, **quality)).quality == ()


def test_the_packaged_policies_have_valid_quality():
    for name in policy_names():
        assert isinstance(read_policy(name).quality, tuple)


def test_quality_is_no_part_of_the_policy(tmp_path):
    policy = read_policy(policy_file(tmp_path, quality=[QUALITY])).policy
    assert "quality" not in policy_values(policy)
    with pytest.raises(UsageError, match="quality"):
        policy_from({"rule": "probe", "quality": [QUALITY]})


BAD: dict[str, list[Any]] = {
    "model": ["", " ", 3, None, []],
    "data": ["", 1.5],
    "prompts": [0, -1, 2.0, "12", True, None],
    "kl": [-0.1, float("nan"), float("inf"), "0.1", None, True, 10**400],
    "kl_low": [-1],
    "kl_high": ["x"],
    "top1": [1.1, -0.1, "1"],
    "top1_low": [2],
    "top1_high": [None],
    "ca_density": [1.5, float("nan")],
    "density": [-0.5, [0.5]],
    "date": [20260101, "", None],
}


def test_every_field_is_listed_here():
    assert set(BAD) == set(QUALITY)


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in BAD.items() for v in values])
def test_a_bad_value_is_refused_naming_the_field(field, value):
    with pytest.raises(UsageError, match=rf"p\.yaml: quality\[1\]: {field}: expected"):
        quality_entries([QUALITY, {**QUALITY, field: value}], "p.yaml")


@pytest.mark.parametrize("field", QUALITY)
def test_a_missing_field_is_named(field):
    rest = {name: value for name, value in QUALITY.items() if name != field}
    with pytest.raises(UsageError, match=rf"quality\[0\]: field {field} is missing"):
        quality_entries([rest], "p.yaml")


def test_an_unknown_field_is_named():
    with pytest.raises(UsageError, match="unknown field speed; known are model, data"):
        quality_entries([{**QUALITY, "speed": 2}], "p.yaml")


@pytest.mark.parametrize("block", ["good", {"kl": 0.1}, [0.1], ["good"], 1, [[QUALITY]]])
def test_a_block_that_is_no_list_of_measurements_is_refused(tmp_path, block):
    with pytest.raises(UsageError, match=r"p\.yaml: expected quality as a list of measurements"):
        load_policy(policy_file(tmp_path, quality=block))


def test_bare_dates_and_whole_numbers_are_read_as_meant(tmp_path):
    path = tmp_path / "p.yaml"
    lines = [f"  {name}: {value}" for name, value in {**QUALITY, "kl_low": 0}.items()]
    path.write_text("rule: probe\nquality:\n-" + "\n".join(lines)[1:])
    (found,) = read_policy(str(path)).quality
    assert found["date"] == "2026-01-01"
    assert found["kl_low"] == 0.0 and isinstance(found["kl_low"], float)


def test_the_entry_of_a_model_is_its_first():
    other, second = {**QUALITY, "model": "other"}, {**QUALITY, "kl": 0.5}
    assert quality_for((other, QUALITY, second), "tiny") is QUALITY
    assert quality_for((other,), "tiny") is None


def test_a_line_for_people():
    assert quality_line(None) == "not measured"
    assert quality_line(QUALITY) == (
        "KL 0.01 [0.005, 0.02], top-1 0.950 [0.900, 1.000] at CA density 0.30 on 4 prompts of "
        "made up (tiny, 2026-01-01)"
    )
    assert quality_line({"kl": 0.1, "how": "by hand"}) == "kl=0.1, how=by hand"
