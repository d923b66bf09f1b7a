"""Whether something is there: yes, no, or that the system does not tell."""

import errno
import os
from pathlib import Path

import pytest

from sift_index.formats.errors import UsageError
from sift_index.formats.presence import is_folder, is_regular, is_there, resolved

LOOKS = (is_there, is_folder, is_regular)


@pytest.fixture
def places(tmp_path) -> Path:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (".", (True, True, False)),
        ("file", (True, False, True)),
        ("link", (True, False, True)),
        ("loop", (False, False, False)),
        ("nothing", (False, False, False)),
        ("file/below", (False, False, False)),
        ("zero\0", (False, False, False)),
    ],
)
def test_what_lies_at_a_path(places, name, expected) -> None:
    assert tuple(look(places / name) for look in LOOKS) == expected
    assert tuple(look(str(places / name)) for look in LOOKS) == expected


@pytest.mark.parametrize("look", LOOKS)
def test_a_path_that_nobody_may_look_at_is_wrong_usage(places, monkeypatch, look) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(UsageError, match="file: expected .* found Permission denied; let this"):
        look(places / "file")


@pytest.mark.parametrize("look", LOOKS)
def test_a_name_too_long_is_cut_in_the_message(places, look) -> None:
    with pytest.raises(UsageError, match=r"^y{80}…: .* File name too long; give a shorter one"):
        look("y" * 300)


def test_links_are_followed_where_they_can_be(places, monkeypatch) -> None:
    assert resolved(places / "link") == places.resolve() / "file"
    assert resolved(places / "loop").name == "loop"

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "readlink", refuse)  # of another user's process, in /proc
    with pytest.raises(UsageError, match="link: expected .* found Permission denied"):
        resolved(places / "link")
