"""Corpus readers: every place documents come from, behind one small interface."""

from sift_index.pipelines.corpus.base import NOT_LISTED, CorpusReader, Document, Location
from sift_index.pipelines.corpus.files import IgnoredFiles, ignored_files
from sift_index.pipelines.corpus.open import open_corpus

__all__ = [
    "NOT_LISTED",
    "CorpusReader",
    "Document",
    "IgnoredFiles",
    "Location",
    "ignored_files",
    "open_corpus",
]
