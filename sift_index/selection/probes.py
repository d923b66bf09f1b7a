"""Probe texts: what is run to measure what foreign text attends to (`probe_bank`).

Apart from the bank, because whoever opens an index compares texts and runs none.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from sift_index import configs
from sift_index.errors import UsageError
from sift_index.formats.presence import is_folder, is_regular
from sift_index.selection.policy import BUILTIN, CORPUS, ProbePolicy


def probe_texts(source: str) -> list[str]:
    """Return the probe texts: the packaged ones (`builtin`), a text file, or a folder of them.

    Raises UsageError for none, and for `corpus`: whoever reads the corpus replaces it by a path.
    """
    if source == CORPUS:
        raise UsageError(
            "expected probe_source 'builtin', a text file or a folder of .txt files, found "
            "'corpus', which only `sift-index build` and `sift-index tune` can sample; give a "
            "folder of texts, such as probes/ of an index built with it"
        )
    path = configs.resource("probes") if source == BUILTIN else Path(source)
    files = sorted(path.glob("*.txt")) if is_folder(path) else [path]
    if not files or not all(map(is_regular, files)):
        raise UsageError(
            f"expected probe_source 'builtin', a text file or a folder of .txt files, "
            f"found {source!r}"
        )
    try:
        return [file.read_text(encoding="utf-8") for file in files]
    except OSError as problem:
        raise UsageError(f"probe texts in {source!r} cannot be read: {problem}") from problem
    except UnicodeDecodeError as problem:
        raise UsageError(f"probe texts in {source!r} are not UTF-8: {problem}") from problem


def probe_digest(policy: ProbePolicy) -> str:
    """Return the hex digest of the probe texts: part of the build fingerprint."""
    return texts_digest(probe_texts(policy.probe_source))


def texts_digest(texts: Iterable[str]) -> str:
    """Return the hex digest of probe texts in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        digest.update(len(text.encode()).to_bytes(8, "little") + text.encode())
    return digest.hexdigest()
