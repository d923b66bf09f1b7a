from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from sift_index.formats.errors import BuildError, IntegrityError
from sift_index.formats.store import (
    TEMP_PREFIX,
    IndexPaths,
    file_names,
    file_pieces,
    file_sizes,
    map_file,
    plain_name,
    read_file,
    regular_size,
    replace_atomically,
    require_sizes,
    write_folder_if_absent,
    write_if_absent,
)


def test_the_first_writer_of_a_name_wins(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    assert write_if_absent(path, b"first")
    assert not write_if_absent(path, b"second")
    assert path.read_bytes() == b"first"
    assert os.listdir(path.parent) == ["file"]


def test_one_of_many_threads_wins_whole(tmp_path: Path) -> None:
    path, wins = tmp_path / "file", []
    start = threading.Barrier(8)

    def write(i: int) -> None:
        start.wait()
        if write_if_absent(path, bytes([i]) * 10_000):
            wins.append(i)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) == 1
    assert path.read_bytes() == bytes(wins) * 10_000
    assert os.listdir(tmp_path) == ["file"]


def test_files_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_if_absent(tmp_path / "file", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("call", ["write", "fsync", "link"])
def test_a_full_disk_leaves_nothing_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Full:
        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        write = full

    def full_file(handle: int, _: str) -> Full:
        os.close(handle)
        return Full()

    if call == "write":
        monkeypatch.setattr(os, "fdopen", full_file)
    else:
        monkeypatch.setattr(os, call, full)
    with pytest.raises(BuildError, match="No space left.*free disk space"):
        write_if_absent(tmp_path / "file", b"x" * 100)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_a_file_is_a_build_error(tmp_path: Path) -> None:
    (tmp_path / "index").write_bytes(b"")
    with pytest.raises(BuildError, match="run the same command again"):
        IndexPaths(tmp_path / "index").create()
    with pytest.raises(BuildError):
        write_if_absent(tmp_path / "index" / "file", b"x")


def test_folders_that_take_no_file_are_found_by_trying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = IndexPaths(tmp_path / "index")
    paths.create()
    paths.require_writable()
    assert os.listdir(paths.packs) == os.listdir(paths.commits) == []
    opened = os.open

    def refuse(path: Path, flags: int, *rest: int) -> int:
        if flags & os.O_CREAT and "commits" in str(path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opened(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(BuildError, match="commits.*Read-only file system.*make the folder writ"):
        paths.require_writable()
    assert os.listdir(paths.packs) == []


def test_the_first_writer_of_a_folder_wins_whole(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert write_folder_if_absent(folder, {"a": b"first", "b": b"first"})
    assert not write_folder_if_absent(folder, {"a": b"second", "c": b"second"})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "a": b"first",
        "b": b"first",
    }
    assert os.listdir(folder.parent) == ["folder"]


def test_an_empty_folder_counts_as_absent(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert write_folder_if_absent(tmp_path / "folder", {"a": b"first"})
    assert os.listdir(tmp_path / "folder") == ["a"]


@pytest.mark.parametrize("call", ["fsync", "link", "rename"])
def test_a_folder_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(BuildError, match="No space left.*free disk space"):
        write_folder_if_absent(tmp_path / "folder", {"a": b"x"})
    assert os.listdir(tmp_path) == []


def test_a_file_in_the_place_of_a_folder_is_kept(tmp_path: Path) -> None:
    (tmp_path / "folder").write_bytes(b"mine")
    with pytest.raises(BuildError, match="folder: expected to write"):
        write_folder_if_absent(tmp_path / "folder", {"a": b"x"})
    with pytest.raises(IntegrityError, match="plain file name"):
        write_folder_if_absent(tmp_path / "other", {"../a": b"x"})
    assert os.listdir(tmp_path) == ["folder"]


def test_replace_writes_over_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    replace_atomically(tmp_path / "file", b"one")
    replace_atomically(tmp_path / "file", b"two")
    assert (tmp_path / "file").read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["file"]


def test_a_replace_that_fails_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "file" / "inner").mkdir(parents=True)
    with pytest.raises(BuildError):
        replace_atomically(tmp_path / "file", b"x")
    assert os.listdir(tmp_path) == ["file"]


def test_leftover_temporary_files_are_not_listed(tmp_path: Path) -> None:
    for name in (f"{TEMP_PREFIX}1-a.json", "b.json", "a.json", "c.arrow"):
        (tmp_path / name).write_bytes(b"")
    assert file_names(tmp_path, ".json") == ["a.json", "b.json"]
    assert file_names(tmp_path / "none", ".json") == []


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "/etc/passwd", "a\\b", ".hidden", "a\0b", "a..b", "a\n", "é"],
)
def test_names_that_could_leave_the_folder_are_refused(name: str) -> None:
    with pytest.raises(IntegrityError, match="plain file name"):
        plain_name(name, "manifest")
    with pytest.raises(IntegrityError):
        IndexPaths(Path("index")).pack_path(name)
    with pytest.raises(IntegrityError):
        IndexPaths(Path("index")).receipt_path(name)


def test_links_and_folders_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"data")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for path in (tmp_path / "link", tmp_path):
        with pytest.raises(IntegrityError, match="regular file"):
            read_file(path)
        with pytest.raises(IntegrityError, match="regular file"):
            map_file(path, 4, "")


def test_a_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(11))
    with pytest.raises(IntegrityError, match="at most 10"):
        read_file(tmp_path / "file", limit=10)


def test_mapping_checks_the_size_and_keeps_no_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    before = len(os.listdir("/proc/self/fd"))
    mapped = [map_file(path, 10, "") for _ in range(5)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert {bytes(buffer) for buffer in mapped} == {b"0123456789"}
    for size in (9, 11):
        with pytest.raises(IntegrityError, match=f"{size} bytes"):
            map_file(path, size, "")


def _piece(path: Path, start: int, count: int) -> bytes:
    with file_pieces(path, 4) as read:
        return read(start, count)


def test_pieces_of_a_file_of_the_right_size_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123")
    assert (_piece(tmp_path / "file", 1, 2), _piece(tmp_path / "file", 3, 9)) == (b"12", b"3")
    (tmp_path / "short").write_bytes(b"012")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    cases = {
        "short": "expected 4 bytes, found 3",
        "link": "regular file",
        "none": "expected a file",
    }
    for name, message in cases.items():
        with pytest.raises(IntegrityError, match=message):
            _piece(tmp_path / name, 0, 1)


def test_sizes_are_listed_of_regular_files_only(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"0123")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert file_sizes(tmp_path) == {"file": 4}
    assert file_sizes(tmp_path / "none") == {}
    require_sizes(tmp_path, {"file": 4})
    for name, message in {"link": "regular file", "none": "expected a file"}.items():
        with pytest.raises(IntegrityError, match=message):
            require_sizes(tmp_path, {"file": 4, name: 4})
    with pytest.raises(IntegrityError, match="expected 5 bytes, found 4"):
        require_sizes(tmp_path, {"file": 5})


def test_an_empty_or_missing_file_cannot_be_mapped(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    for name in ("empty", "missing"):
        with pytest.raises(IntegrityError, match=name):
            map_file(tmp_path / name, 0, "")


def test_a_refused_read_asks_for_permission_not_for_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"data")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    calls: list[tuple[object, str, Callable[[], object]]] = [
        (Path, "lstat", lambda: regular_size(tmp_path / "file")),
        (Path, "read_bytes", lambda: read_file(tmp_path / "file")),
        (os, "listdir", lambda: file_names(tmp_path, ".json")),
        (os, "scandir", lambda: file_sizes(tmp_path)),
        (os, "pread", lambda: _piece(tmp_path / "file", 0, 4)),
        (Path, "open", lambda: _piece(tmp_path / "file", 0, 4)),
        (Path, "is_symlink", IndexPaths(tmp_path).require_real_folders),
        (pa, "memory_map", lambda: map_file(tmp_path / "file", 4, "")),
    ]
    for owner, name, call in calls:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, refuse)
            with pytest.raises(IntegrityError, match="Permission denied; let this user") as caught:
                call()
        assert "restore" not in str(caught.value)
