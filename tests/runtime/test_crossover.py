"""Tables of where sparse pays: read, interpolated, refused when bad."""

import pytest
import torch

from sift_index.errors import UsageError
from sift_index.kernels.api import plan_density
from sift_index.runtime import crossover
from sift_index.runtime.crossover import Crossover, CrossoverRow, find_crossover, read_crossover
from sift_index.runtime.estimate import estimated_density
from tests.plans import compose, layout_of, masks_of, tiny, tokens

GOOD = """
device: NVIDIA H200
model_shape: llama-3.1-8b
rows:
  - {tokens: 1024, max_density: 0}
  - {tokens: 4096, max_density: 0.4}
  - {tokens: 16384, max_density: 0.6}
"""


@pytest.fixture
def write(tmp_path):
    def written(text: str):
        path = tmp_path / "table.yaml"
        path.write_text(text)
        return path

    return written


def test_density_over_length(write):
    table = read_crossover(write(GOOD))
    assert (table.device, table.model_shape) == ("NVIDIA H200", "llama-3.1-8b")
    expected = {0: 0, 500: 0, 1024: 0, 2048: 0.2, 4096: 0.4, 8192: 0.5, 16384: 0.6, 10**6: 0.6}
    for length, density in expected.items():
        assert table.max_density(length) == pytest.approx(density), length


BAD = {
    "no mapping": ("- 1", "expected a YAML mapping, found list"),
    "no YAML": ("a: [", "expected a YAML mapping in UTF-8"),
    "an entry missing": ("device: x\nrows: []", "the entries device, model_shape, rows"),
    "an entry too many": (GOOD + "kernel: best\n", "the entries device, model_shape, rows"),
    "a device that is no text": (GOOD.replace("NVIDIA H200", "200"), "device as a text, found 200"),
    "no rows": (GOOD.split("rows")[0] + "rows: []", "at least one row"),
    "a row that is none": (GOOD + "  - 7\n", "rows of tokens and max_density, found 7"),
    "a row with more": (GOOD + "  - {tokens: 20000, max_density: 1, x: 2}\n", "rows of tokens and"),
    "tokens of none": (GOOD.replace("1024", "0"), "tokens of 1 or more, found 0"),
    "tokens of a text": (GOOD.replace("1024", "1K"), "tokens of 1 or more, found '1K'"),
    "a density above 1": (GOOD.replace("0.6", "6"), "a max_density of 0 to 1, found 6"),
    "a density of a text": (GOOD.replace("0.6", "high"), "a max_density of 0 to 1, found 'high'"),
    "rows in disorder": (GOOD.replace("16384", "4096"), "rows by ascending tokens"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tables_are_refused_with_the_reason(case, write):
    text, message = BAD[case]
    with pytest.raises(UsageError, match=message):
        read_crossover(write(text))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="expected auto, off or the path of a table"):
        find_crossover(tmp_path / "none.yaml", torch.device("cpu"))


def test_auto_is_the_packaged_table_of_the_device(write, monkeypatch):
    monkeypatch.setattr(crossover, "packaged_tables", lambda: write(GOOD).parent)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    found = find_crossover("auto", torch.device("cuda"))
    assert found is not None and found.model_shape == "llama-3.1-8b"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H20")
    assert find_crossover("auto", torch.device("cuda")) is None
    assert find_crossover(found, torch.device("cpu")) is found


def test_packaged_tables_can_be_read():
    for path in crossover.packaged_tables().glob("*.yaml"):
        assert read_crossover(path).rows


# --- the density that decides ------------------------------------------------------------------

MODEL = tiny("llama")
SIZES = (1000, 300, 129, 1500, 40)


def plan_of(kind: str, level: int = 1, dense_tiles: int = 8, **layout):
    shape = layout_of(MODEL, **layout)
    documents = [tokens(n) for n in SIZES]
    known = [masks_of(ids, shape, kind, dense_tiles) for ids in documents]
    parts = [tokens(90, seed=1), *documents, tokens(33, seed=2), documents[0], tokens(60, seed=3)]
    return compose(MODEL, shape, parts, known, level).sparse


LAYOUTS = [{}, {"page_size": 128}, {"mask_heads": 2, "page_size": 8}, {"boundary": 0}]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["on", "off", "random"])
@pytest.mark.parametrize("dense_tiles", [1, 8])
def test_the_estimate_is_near_the_density(layout, kind, dense_tiles):
    plan = plan_of(kind, dense_tiles=dense_tiles, **layout)
    exact = plan_density(plan).total.share
    assert estimated_density(plan) == pytest.approx(exact, abs=0.02)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_the_estimate_knows_levels(level):
    plan = plan_of("random", level, levels=2, dense_tiles=1)
    assert estimated_density(plan) == pytest.approx(plan_density(plan).total.share, abs=0.02)


def test_the_estimate_of_an_empty_prompt_and_of_glue_alone():
    shape = layout_of(MODEL)
    assert estimated_density(compose(MODEL, shape, [], []).sparse) == 0
    assert estimated_density(compose(MODEL, shape, [tokens(500)], []).sparse) == 1


def test_the_density_decides_between_the_limits():
    plan = plan_of("random")
    exact = plan_density(plan).total.share
    for limit, dense in ((exact - 0.05, True), (exact + 0.05, False), (0.0, True), (1.0, False)):
        table = Crossover("x", "y", (CrossoverRow(1, limit),))
        found = table.decide(plan)
        assert found.dense is dense
        assert (found.density is None) == (limit in (0, 1))


@pytest.mark.parametrize("wrong", [True, 5, b"auto", ["auto"]], ids=str)
def test_a_choice_of_another_type_is_refused(wrong):
    with pytest.raises(UsageError, match="crossover: expected auto, off, the path of a table"):
        find_crossover(wrong, torch.device("cpu"))
