"""Tables of prefill times: their lines, in an order that reads well."""

import torch

from benchmarks.tables import _by_case, _cases_table
from benchmarks.ttft_table import ENERGY, HEADING, REUSE, TTFT, arranged, is_reuse, place
from sift_index.bench.ttft_cases import DRAM, FA3, KV_REUSE, SIFT, Row, TTFTCase, TTFTOptions
from sift_index.bench.ttft_measure import PrefillTiming, TTFTResult
from sift_index.bench.ttft_report import ttft_rows


def rows_of(*cases: TTFTCase) -> list[dict[str, object]]:
    timings = (
        PrefillTiming(Row(KV_REUSE, store=DRAM), 200.0, {"load": 90.0}, numbers={"kv_bytes": 5e9}),
        PrefillTiming(Row(SIFT, 0.1), 500.0, {"attention": 300.0}, 50.0, {"metadata_bytes": 9.0}),
        PrefillTiming(Row(SIFT), 700.0, {"attention": 400.0}, 60.0),
        PrefillTiming(Row(FA3), 1000.0, {"attention": 800.0}, 100.0),
    )
    results = [TTFTResult(case, timings) for case in cases]
    return [vars(row) for result in results for row in ttft_rows(result, torch.device("cpu"))]


ROWS = rows_of(TTFTCase(131072, 1024), TTFTCase(16384, 4096), TTFTCase(16384, 1024))


def ttft_table(rows, columns=TTFT) -> str:
    """As a block of `benchmarks.tables` renders it."""
    return _cases_table(HEADING, arranged(_by_case(rows), columns), columns)


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.split("\n")]


def test_lines_come_by_document_length_and_row():
    names = [line[0] for line in cells(ttft_table(ROWS))[2:14]]
    rows = ("dense-fa3", "default", "ca10", "kv-reuse-dram")
    short = [f"{tokens}-{row}" for tokens in ("16k", "128k") for row in rows]
    assert names == [*short, *(f"16k-{row}-doc4k" for row in rows)]


def test_columns_are_those_that_were_measured():
    header, _, dense, *_ = cells(ttft_table(ROWS))
    assert header == ["prompt and row", "TTFT, ms", "attention", "times dense FA3"]
    assert dense == ["16k-dense-fa3", "1,000", "800", "–"]
    header, _, dense, default, ca10, *_ = cells(ttft_table(ROWS, ENERGY))
    assert header[-1] == "dense EDP / its" and ca10[-1] == "4"
    assert "16k-kv-reuse-dram" not in ttft_table(ROWS, ENERGY)


def test_reuse_shows_the_bytes_it_moves():
    some = [row for row in ROWS if is_reuse(str(row["case"]))]
    header, _, first, *_ = cells(ttft_table(some, REUSE))
    assert first[header.index("bytes moved")] == "5,000,000,000"
    assert first[header.index("times dense FA3")] == "5"


def test_every_row_of_the_usual_run_has_a_place():
    options = TTFTOptions(disk=True)
    names = [c.row_name(row.name) for c in options.cases() for row in options.rows()]
    first = [place(name)[2] for name in names[: len(options.rows())]]
    assert first == [0, 1, 3, 4, 4, 5, 5, 6, 6]
