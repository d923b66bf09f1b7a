"""Stored KV on a local disk: a file for each layer, read past the system's page cache."""

import os
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import torch

from sift_index.bench.ttft_kv import HostKV
from sift_index.errors import UsageError

# Enough reads under way, each long enough, for the full speed of an NVMe disk.
READERS = 8
CHUNK = 8 << 20
DIRECT, DROPPED = "O_DIRECT", "page cache dropped before each read"


class OnDisk:
    """KV in files inside `folder`, written at once and removed by `close`.

    mode: `DIRECT`, or `DROPPED` where the file system has no direct reads. Raises UsageError where
    the disk has no room, or cannot be written.
    """

    def __init__(self, kv: HostKV, folder: Path) -> None:
        self.kv = kv
        _check_room(folder, sum(block.nbytes for block in kv.blocks))
        self._folder = Path(tempfile.mkdtemp(prefix="sift-kv-", dir=folder))
        paths = [self._folder / f"{layer:04}.kv" for layer in range(len(kv.blocks))]
        for path, block in zip(paths, kv.blocks, strict=True):
            _write(path, block)
        self._files, self.mode = _opened(paths)
        self._pool = ThreadPoolExecutor(READERS)
        self._reads: list[Sequence[Future[None]]] = []

    def begin(self) -> None:
        """Start reading all layers in order; the page cache holds none of them."""
        if self.mode == DROPPED:
            for file in self._files:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        self._reads = [self._start(layer) for layer in range(len(self._files))]

    def read(self, layer: int) -> None:
        """Return once a layer is in host memory. Raises OSError where its file cannot be read."""
        wait(self._reads[layer])
        for part in self._reads[layer]:
            part.result()

    def close(self) -> None:
        """Remove the files."""
        self._pool.shutdown(cancel_futures=True)
        for file in self._files:
            os.close(file)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, layer: int) -> list[Future[None]]:
        block = self.kv.blocks[layer]
        return [
            self._pool.submit(_read, self._files[layer], block[at : at + CHUNK], at)
            for at in range(0, block.nbytes, CHUNK)
        ]


def _read(file: int, target: torch.Tensor, offset: int) -> None:
    view = target.numpy().data
    while len(view):
        count = os.preadv(file, [view], offset)
        if not count:
            raise OSError(f"expected {len(view)} more bytes of stored KV, found the file's end")
        view, offset = view[count:], offset + count


def _write(path: Path, block: torch.Tensor) -> None:
    with path.open("wb") as file:
        file.write(block.numpy().data)
        file.flush()
        os.fsync(file.fileno())


def _opened(paths: Sequence[Path]) -> tuple[list[int], str]:
    """Return open files and how they are read; some file systems refuse direct reads."""
    try:
        return [os.open(path, os.O_RDONLY | os.O_DIRECT) for path in paths], DIRECT
    except OSError:
        return [os.open(path, os.O_RDONLY) for path in paths], DROPPED


def _check_room(folder: Path, needed: int) -> None:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as problem:
        raise UsageError(f"--kv-disk: {folder} cannot be used: {problem}") from problem
    if free < needed:
        raise UsageError(
            f"--kv-disk: expected {needed / 1e9:.1f} GB of free disk, found {free / 1e9:.1f} GB; "
            "name a folder on another disk, or take shorter prompts"
        )
