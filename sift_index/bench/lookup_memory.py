"""Memory of processes that read one index: Linux's proportional set size (PSS).

A page that n processes map counts 1/n in each, so sums say what all of them cost together.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sift_index.bench.lookup_child import ChildOptions
from sift_index.errors import SiftError

_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(.*)$")


@dataclass(frozen=True)
class Memory:
    """Bytes of PSS: `index`, of files of the index; `all`, of everything, Python included."""

    index: int
    all: int

    def __add__(self, other: "Memory") -> "Memory":
        return Memory(self.index + other.index, self.all + other.all)


def pss(smaps: str, root: str) -> Memory:
    """Return what the text of /proc/<pid>/smaps says about files below `root`, and in all."""
    inside, index, everything = False, 0, 0
    for line in smaps.splitlines():
        mapping = _MAPPING.match(line)
        if mapping:
            inside = mapping[1].startswith(f"{root}/")
        elif line.startswith("Pss:"):
            size = 1024 * int(line.split()[1])
            everything += size
            index += size if inside else 0
    return Memory(index, everything)


def measure_processes(options: ChildOptions, count: int) -> tuple[list[dict[str, Any]], Memory]:
    """Run `count` processes at once; return their times and their memory together.

    Raises SiftError when one fails.
    """
    with ExitStack() as stack:
        children = [stack.enter_context(_child(options)) for _ in range(count)]
        found = [_answer(child) for child in children]
        root = str(Path(options.root).resolve())
        memory = Memory(0, 0)
        for child in children:
            memory += pss(Path(f"/proc/{child.pid}/smaps").read_text(), root)
        return found, memory


@contextmanager
def _child(options: ChildOptions) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-m", "sift_index.bench.lookup_child", json.dumps(asdict(options))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def _answer(child: "subprocess.Popen[str]") -> dict[str, Any]:
    line = child.stdout.readline() if child.stdout else ""
    if not line:
        raise SiftError("expected a line of times from a reading process, found that it ended")
    return dict(json.loads(line))
