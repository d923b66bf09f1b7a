"""Line numbers of byte offsets.

A location in a JSON Lines file is an offset, but people and default ids want a line. Counting from
the start for every document would be quadratic, so one count is kept per block.
"""

from pathlib import Path
from typing import BinaryIO

BLOCK = 1 << 18


class LineNumbers:
    """Counts the lines of one file, no further than it was asked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before = [0]  # line ends before block i

    def at(self, offset: int) -> int:
        """Return the number, from 1, of the line that holds the byte at `offset`.

        Raises OSError when the file cannot be read.
        """
        block, rest = divmod(offset, BLOCK)
        with self._path.open("rb") as file:
            if block >= len(self._before):
                self._before = self._counted(file, block)
            file.seek(block * BLOCK)
            return self._before[block] + file.read(rest).count(b"\n") + 1

    def _counted(self, file: BinaryIO, block: int) -> list[int]:
        before = list(self._before)
        file.seek((len(before) - 1) * BLOCK)
        while len(before) <= block:
            before.append(before[-1] + file.read(BLOCK).count(b"\n"))
        return before
