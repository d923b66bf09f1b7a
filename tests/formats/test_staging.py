from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sift_index.formats.errors import UsageError
from sift_index.formats.staging import staged_file, staged_folder


def test_a_mount_point_is_refused_before_anything_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "volume").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path).name == "volume")
    with (
        pytest.raises(UsageError, match="found a mount point; name a folder in it"),
        staged_folder(tmp_path / "volume"),
    ):
        raise AssertionError("the block was entered")
    assert os.listdir(tmp_path) == ["volume"]
    with staged_folder(tmp_path / "volume" / "index") as temp:
        (temp / "file").write_bytes(b"x")
    assert (tmp_path / "volume" / "index" / "file").read_bytes() == b"x"


def test_an_empty_folder_is_replaced_and_a_full_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with staged_folder(tmp_path / "empty") as temp:
        (temp / "file").write_bytes(b"x")
    assert os.listdir(tmp_path / "empty") == ["file"]
    with pytest.raises(UsageError, match="something there"), staged_folder(tmp_path / "empty"):
        raise AssertionError("the block was entered")


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    for staged in (staged_file, staged_folder):
        with pytest.raises(KeyError), staged(tmp_path / "out"):
            raise KeyError
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("owner", "call"), [(Path, "iterdir"), (os, "readlink")])
def test_a_path_that_cannot_be_looked_at_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, call: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(owner, call, refuse)
    with (
        pytest.raises(UsageError, match="link: expected .* found Permission denied"),
        staged_folder(tmp_path / "link"),
    ):
        raise AssertionError("the block was entered")
