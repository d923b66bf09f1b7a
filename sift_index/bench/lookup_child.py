"""One process of `sift-index bench lookup`: opens the index, times lookups, waits to be measured.

python -m sift_index.bench.lookup_child OPTIONS (JSON): prints one line of JSON and ends when its
input ends. Imports neither torch nor anything else a reader in another stack would not need.
"""

import json
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from sift_index.formats.reader import IndexReader


@dataclass(frozen=True)
class ChildOptions:
    """What a process does: `samples` random keys, the same for equal seeds."""

    root: str
    samples: int
    seed: int
    cache: int = 0


@dataclass(frozen=True)
class LookupTimes:
    """Seconds to open and to map all packs; microseconds of lookups, as [p50, p99].

    again: of rows used before. first: of rows not used before, whose checksums are checked. absent:
    of keys that are not indexed. cached: of rows in the cache of decoded masks, where it is on.
    """

    open_s: float
    pin_s: float
    first: tuple[float, float]
    again: tuple[float, float]
    absent: tuple[float, float]
    cached: tuple[float, float] | None


def measure(options: ChildOptions) -> tuple[IndexReader, LookupTimes]:
    """Open an index and time lookups in it, one by one."""
    started = time.perf_counter()
    reader = IndexReader.open(Path(options.root))
    opened = time.perf_counter()
    reader.pin()
    pinned = time.perf_counter()
    rng = np.random.default_rng(options.seed)
    places = rng.choice(len(reader), min(options.samples, len(reader)), replace=False)
    keys = [reader.keys.key(int(place)) for place in places]
    shuffled = [keys[i] for i in rng.permutation(len(keys))]
    absent = [rng.bytes(16) for _ in keys]
    first, again, none = (_times(reader, part) for part in (keys, shuffled, absent))
    cached = None
    if options.cache:
        reader.keep_decoded(options.cache)
        _times(reader, keys)
        cached = _times(reader, shuffled)
    times = LookupTimes(opened - started, pinned - opened, first, again, none, cached)
    return reader, times


def _times(reader: IndexReader, keys: Iterable[bytes]) -> tuple[float, float]:
    lookup, now = reader.lookup, time.perf_counter_ns
    taken = []
    for key in keys:
        started = now()
        lookup(key)
        taken.append(now() - started)
    low, high = np.percentile(np.array(taken) / 1e3, [50, 99]).tolist()
    return low, high


def main() -> None:
    """Measure as the first argument says, then keep the index open."""
    # The reader stays referenced: what is mapped while waiting is what is measured.
    reader, times = measure(ChildOptions(**json.loads(sys.argv[1])))
    print(json.dumps({**asdict(times), "keys": len(reader)}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
