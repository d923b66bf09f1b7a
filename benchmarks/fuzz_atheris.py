"""The fuzzer's process: libFuzzer mutates inputs and keeps those that reach new lines of formats.

python -m benchmarks.fuzz_atheris CORPUS [libFuzzer options]; `benchmarks.fuzz` starts it.
"""

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["sift_index.formats"]):
    from benchmarks.fuzz_targets import Targets

if __name__ == "__main__":
    folder = tempfile.mkdtemp()  # libFuzzer ends the process itself, so the parent removes it
    targets = Targets(Path(folder))
    for number, seed in enumerate(targets.seeds()):
        (Path(sys.argv[1]) / f"seed-{number}").write_bytes(seed)
    atheris.Setup([sys.argv[0], *sys.argv[2:], sys.argv[1]], targets.run)
    atheris.Fuzz()
