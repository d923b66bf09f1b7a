from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sift_index.formats import canonical
from sift_index.formats.canonical import canonical_bytes, digest, dump_checked, load_checked
from sift_index.formats.errors import IntegrityError, UsageError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    LEAF | TEXT, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner)
)
DOCUMENTS = st.dictionaries(TEXT.filter(lambda name: name != "checksum"), VALUES, max_size=4)


@given(document=DOCUMENTS)
def test_load_inverts_dump(document: dict[str, Any]) -> None:
    data = dump_checked(document)
    assert load_checked(data, "file") == document
    assert dump_checked(load_checked(data, "file")) == data


def test_the_only_spelling() -> None:
    value = {"b": [1, 2.5, None], "a": {"é": True}}
    expected = '{\n  "a": {\n    "é": true\n  },\n  "b": [\n    1,\n    2.5,\n    null\n  ]\n}\n'
    assert canonical_bytes(value) == expected.encode()
    assert digest({"x": 1}) == "77b48254262a54e6cd866e5e7d686ca5"


def test_every_changed_byte_is_found() -> None:
    data = dump_checked({"name": "x", "sizes": [1, 20], "nested": {"rate": 0.5, "on": True}})
    for place in range(len(data)):
        for other in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            changed = bytearray(data)
            changed[place] ^= other
            with pytest.raises(IntegrityError, match="some/file"):
                load_checked(bytes(changed), "some/file")


def test_every_cut_and_every_extra_byte_is_found() -> None:
    data = dump_checked({"name": "x"})
    for damaged in [*(data[:n] for n in range(len(data))), data + b"\n", b" " + data]:
        with pytest.raises(IntegrityError):
            load_checked(damaged, "file")


@pytest.mark.parametrize(
    "value",
    [
        {"x": float("nan")},
        {"x": float("inf")},
        {1: "x"},
        {"x": {2}},
        {"x": b"bytes"},
        {"x": "\ud800"},
    ],
)
def test_what_has_no_single_spelling_is_refused(value: Any) -> None:
    with pytest.raises(UsageError):
        canonical_bytes(value)


def test_deep_nesting_is_refused_both_ways() -> None:
    deep: Any = {}
    for _ in range(canonical.MAX_DEPTH + 1):
        deep = {"x": deep}
    with pytest.raises(UsageError, match="levels"):
        canonical_bytes(deep)
    for depth in (100, 200_000):
        text = '{"checksum": "", "x": ' + "[" * depth + "]" * depth + "}"
        with pytest.raises(IntegrityError):
            load_checked(text.encode(), "file")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]\n",
        b"null\n",
        b'{"a": 1}\n',
        b'{"checksum": 1e999}\n',
        b'{"checksum": NaN}\n',
        b'{"checksum": "", "checksum": ""}\n',
        b'{"checksum": ' + b"9" * 5000 + b"}\n",
        b'{"checksum": "", "a": "\\ud800"}\n',
    ],
)
def test_foreign_json_is_refused(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        load_checked(data, "file")


def test_an_equal_document_in_another_spelling_is_refused() -> None:
    document = json.loads(dump_checked({"a": 1, "b": 2}))
    with pytest.raises(IntegrityError, match="changed byte"):
        load_checked(json.dumps(document).encode(), "file")


def test_a_huge_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical, "MAX_JSON_BYTES", 10)
    with pytest.raises(IntegrityError, match="at most 10 bytes"):
        load_checked(dump_checked({"a": 1}), "file")


def test_the_checksum_field_is_reserved() -> None:
    with pytest.raises(UsageError, match="checksum"):
        dump_checked({"checksum": "x"})
