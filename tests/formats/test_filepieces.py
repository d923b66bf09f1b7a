"""Pieces of a file: both ends at once, the rest when it is asked for."""

from __future__ import annotations

import io
import os

import pytest

from sift_index.formats.filepieces import FilePieces

DATA = bytes(range(100))


def _pieces(head: int, tail: int) -> tuple[FilePieces, list[tuple[int, int]]]:
    asked: list[tuple[int, int]] = []

    def read(start: int, count: int) -> bytes:
        asked.append((start, count))
        return DATA[start : start + count]

    return FilePieces(read, len(DATA), head, tail), asked


@pytest.mark.parametrize(
    ("head", "tail", "asked"), [(20, 10, [(0, 20), (90, 10)]), (95, 10, [(0, 100)])]
)
def test_what_lies_in_the_ends_is_not_asked_for_again(
    head: int, tail: int, asked: list[tuple[int, int]]
) -> None:
    file, found = _pieces(head, tail)
    assert found == asked
    assert (file.piece(3, 17), file.piece(90, 50)) == (DATA[3:20], DATA[90:])
    assert found == asked


def test_the_rest_is_asked_for_and_never_what_lies_outside() -> None:
    file, asked = _pieces(20, 10)
    assert file.piece(15, 40) == DATA[15:55]
    assert file.piece(85, 99) == DATA[85:]
    assert file.piece(100, 1) == file.piece(5, -1) == b""
    for beyond in (101, 2**62, -1):
        with pytest.raises(ValueError, match="expected a place within 100 bytes"):
            file.piece(beyond, 5)
    assert max(start + count for start, count in asked if count) <= len(DATA)


def test_it_reads_like_a_file() -> None:
    file, _ = _pieces(20, 10)
    plain = io.BytesIO(DATA)
    for whence, offset, count in [
        (os.SEEK_SET, 5, 30),
        (os.SEEK_CUR, -3, 8),
        (os.SEEK_END, -9, 99),
    ]:
        assert file.seek(offset, whence) == plain.seek(offset, whence)
        assert file.read(count) == plain.read(count)
        assert file.tell() == plain.tell()
    assert file.readable() and file.seekable() and not file.writable()
