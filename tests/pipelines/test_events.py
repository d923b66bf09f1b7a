"""Events: one line each, which `grep` finds and a script can split."""

import shlex

import pytest

from sift_index.pipelines.events import KINDS, BuildEvent


def fields(line: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in shlex.split(line))


def test_an_event_is_its_line() -> None:
    event = BuildEvent("retry", unit="1a2b", attempt=2, reason="ValueError: no token 5")
    assert event == 'event=retry unit=1a2b attempt=2 reason="ValueError: no token 5"'
    assert event.kind == "retry" and isinstance(event, str)


@pytest.mark.parametrize(
    "reason",
    ["", "two\nlines", 'a "quoted" word', "a=b", "back\\slash", "„ä“", "tab\there", "it's"],
)
def test_any_text_stays_on_one_line_and_comes_back(reason: str) -> None:
    event = BuildEvent("split", unit="1a2b", reason=reason)
    assert "\n" not in event
    found = fields(event)
    escaped = found["reason"].replace("\\n", "\n").replace("\\t", "\t")
    assert found.keys() == {"event", "unit", "reason"} and escaped == reason


def test_what_is_not_known_is_left_out() -> None:
    assert BuildEvent("worker_lost", worker=3, node=None) == "event=worker_lost worker=3"


def test_kinds_are_plain_words() -> None:
    assert all(kind.replace("_", "").isalpha() and kind.islower() for kind in KINDS)
    assert len(set(KINDS)) == len(KINDS)
