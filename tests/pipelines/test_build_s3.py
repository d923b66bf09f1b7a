"""Builds into an object store: the bytes a folder would get, resumed and refused like there."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sift_index.errors import StorageError, UsageError
from sift_index.formats import buckets
from sift_index.formats.location import RemotePath
from sift_index.formats.reader import IndexReader
from sift_index.formats.verify import verify_index
from sift_index.selection.policy import CORPUS
from tests.object_store import Bucket
from tests.pipelines.builds import POLICY, hashes, text, write_corpus

START = "from sift_index.cli.main import main; main()"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus", {f"{i}.txt": text(300 + 50 * i, i) for i in range(5)})


def test_a_build_in_a_bucket_has_the_bytes_of_one_in_a_folder(
    inline, corpus, bucket: Bucket, tmp_path
) -> None:
    inline(corpus, tmp_path / "index")
    summary = inline(corpus, bucket.path("index"))
    assert summary.published and summary.units > 1
    for name in (*hashes(tmp_path / "index"),):
        (key,) = (key for key in bucket.keys() if key.endswith(name))
        (local,) = (tmp_path / "index").rglob(name)
        assert bucket.get(key) == local.read_bytes()
    assert verify_index(IndexReader.open(bucket.url("index")).paths).ok


def test_a_build_keeps_no_copy_of_a_pack(inline, corpus, bucket: Bucket, tmp_path) -> None:
    """Packs as small as these come in one read; `test_remote_reads` counts bytes of larger ones."""
    inline(corpus, bucket.path("index"))
    manifest = IndexReader.open(bucket.url("index")).manifest
    reads = [asked.path for asked in bucket.requests("index/packs/") if asked.method == "GET"]
    assert sorted(reads) == sorted(f"{bucket.name}/index/packs/{p.name}" for p in manifest.packs)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [manifest.key_table.sha256]


def stored(bucket: Bucket) -> dict[str, bytes]:
    """All objects but what every run says about itself."""
    return {key: bucket.get(key) for key in bucket.keys() if "/state/" not in key}


@pytest.mark.parametrize("conditional", [True, False])
def test_what_was_committed_is_not_computed_again(
    inline, corpus, bucket: Bucket, monkeypatch, conditional
) -> None:
    if not conditional:
        monkeypatch.setattr(buckets, "find_spec", lambda name: None)
    first = inline(corpus, bucket.path("index"))
    before = stored(bucket)
    receipt = bucket.keys("index/commits/")[0]
    for key in (receipt, "index/keys-00000001.arrow", "index/manifest-00000001.json"):
        bucket.delete(key)
    again = inline(corpus, bucket.path("index"))
    assert (again.units, again.resumed_keys) == (1, first.keys - again.new_keys)
    changed = (receipt, "index/manifest-00000001.json")  # they say when they were made
    after = stored(bucket)
    assert after.keys() == before.keys()
    assert {key for key in before if before[key] != after[key]} <= {*changed}
    assert not inline(corpus, bucket.path("index")).published


def test_a_missing_bucket_stops_a_build_before_work(inline, corpus, bucket: Bucket) -> None:
    with pytest.raises(StorageError, match="expected the bucket no-such-bucket"):
        inline(corpus, RemotePath("s3", "no-such-bucket/index"))


def test_probe_texts_of_the_corpus_need_a_folder(inline, corpus, bucket: Bucket) -> None:
    policy = replace(POLICY, probe_source=CORPUS)
    with pytest.raises(UsageError, match="build into a folder and upload it"):
        inline(corpus, bucket.path("index"), policy=policy)
    assert bucket.keys() == []


def test_the_command_builds_with_workers_of_its_own(corpus, bucket: Bucket, tiny_model_dir) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [sys.executable, "-c", START, "build", str(corpus)]
    options = ["--model", str(tiny_model_dir), "--index", bucket.url("index"), "--workers", "1"]
    done = subprocess.run(
        [*command, *options, "--threads", "1"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    reader = IndexReader.open(bucket.url("index"))
    assert sorted(reader.document_ids()) == [f"{i}.txt" for i in range(5)]
    assert all(reader.lookup(reader.keys.key(i)) is not None for i in range(len(reader)))
