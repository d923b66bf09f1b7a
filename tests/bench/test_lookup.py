"""`sift-index bench lookup` on an index small enough for a test."""

import json
import sys

import pytest
from click.testing import CliRunner

from sift_index.bench.lookup import case_name
from sift_index.bench.lookup_index import IndexShape, write_index
from sift_index.bench.lookup_memory import Memory, pss
from sift_index.cli.main import cli
from sift_index.errors import UsageError
from sift_index.formats.blob import Codec
from sift_index.formats.reader import IndexReader

SMAPS = """\
7f0000000000-7f0000001000 r--p 00000000 fe:00 42                         /i/packs/u 1.arrow
Rss:                  40 kB
Pss:                  10 kB
Pss_Dirty:             5 kB
7f0000002000-7f0000003000 rw-p 00000000 00:00 0
Pss:                   4 kB
7f0000004000-7f0000005000 r--p 00000000 fe:00 43                         /index/else
Pss:                   1 kB
"""


def test_pss_counts_files_of_the_index_apart():
    assert pss(SMAPS, "/i") == Memory(10 * 1024, 15 * 1024)
    assert pss("", "/i") == Memory(0, 0)


@pytest.mark.parametrize("codec", list(Codec))
def test_the_index_is_what_was_asked_for(tmp_path, codec):
    shape = IndexShape(documents=50, packs=4, tokens=300, layers=2, heads=3, density=0.2)
    write_index(tmp_path / "index", shape, codec, seed=1)
    reader = IndexReader.open(tmp_path / "index")
    reader.verify().require_clean()
    assert (len(reader), len(reader.manifest.packs)) == (50, 4)
    assert [*reader.document_ids()] == [f"doc-{number:08}" for number in range(50)]
    masks = reader.lookup(reader.document_keys("doc-00000049")[0])
    assert masks is not None
    assert (masks.tokens, masks.ca.packed.shape) == (300, (2, 3, 2))


def test_shapes_that_cannot_be_are_refused():
    with pytest.raises(UsageError, match="3 packs of 2 documents"):
        IndexShape(documents=2, packs=3).check()
    with pytest.raises(UsageError, match="found 0"):
        IndexShape(density=0).check()


def test_cases_are_named_by_size_and_codec():
    assert case_name(1_000_000, Codec.RAW) == "1m-raw"
    assert case_name(20_000, Codec.ZSTD) == "20k-zstd"
    assert case_name(300, Codec.RAW) == "300-raw"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_command_measures_records_and_cleans_up(tmp_path):
    small = "--documents 300 --packs 3 --tokens 500 --layers 2 --heads 2 --samples 100".split()
    results = tmp_path / "lookup.json"
    (tmp_path / "work").mkdir()
    places = ["--folder", str(tmp_path / "work"), "--results", str(results)]
    result = CliRunner().invoke(cli, ["bench", "lookup", *small, *places, "--output", "json"])
    assert result.exit_code == 0, result.output
    cases = json.loads(result.stdout)["cases"]
    assert {*cases} == {"300-raw", "300-zstd"}
    raw = cases["300-raw"]
    assert 0 < raw["p50_us"] <= raw["p99_us"]
    assert 1 <= raw["pss_ratio_4proc"] < 2  # mapped once, whoever reads
    assert "cached_p50_us" in cases["300-zstd"] and "cached_p50_us" not in raw
    rows = json.loads(results.read_text())["rows"]
    assert {row["metric"] for row in rows} >= {"p50_us", "open_s", "pss_ratio_4proc", "key_bytes"}
    assert "300 documents of 500 tokens in 3 packs" in rows[0]["baseline"]
    assert [*(tmp_path / "work").iterdir()] == []


def test_too_little_disk_is_said_before_anything_is_written(tmp_path):
    command = ["bench", "lookup", "--documents", "900000000000", "--folder", str(tmp_path)]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 2
    assert "of free disk" in result.stderr
    assert [*tmp_path.iterdir()] == []
