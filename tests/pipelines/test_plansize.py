"""A plan of more units than a version bears is refused before anything is computed."""

import re
from pathlib import Path

import pytest

from sift_index.errors import BuildError
from sift_index.formats.storage import MAX_JSON_BYTES
from sift_index.formats.store import IndexPaths
from sift_index.pipelines import plansize
from sift_index.pipelines.plansize import enough_tokens, require_bearable
from sift_index.pipelines.resume import Held
from tests.pipelines.builds import identities, many_documents, text, write_corpus
from tests.pipelines.test_planner import piece, plan

SPEC = (Path(__file__).parents[2] / "formats" / "SPEC.md").read_text("utf-8")


@pytest.mark.parametrize("units", [1, 2, 5, 40])
def test_the_advised_budget_makes_few_enough_units(units) -> None:
    pieces = [piece(number, 20 + number) for number in range(40)]
    wanted = enough_tokens(plan(pieces, 1), units)
    assert len(plan(pieces, wanted)) <= units
    assert wanted == 1 << (wanted.bit_length() - 1)


def test_a_plan_that_makes_too_many_packs_is_refused_with_a_way_out(monkeypatch) -> None:
    monkeypatch.setattr(plansize, "MOST_UNITS", 8)
    monkeypatch.setattr(plansize, "MANY_UNITS", 4)
    pieces = [piece(number, 20) for number in range(40)]
    with pytest.raises(BuildError, match=r"makes 10: .*use --unit-tokens 512\. Nothing") as caught:
        require_bearable(plan(pieces, 80), Held(None, ()))
    assert "compact" not in str(caught.value)
    require_bearable(plan(pieces, 512), Held(None, ()))
    require_bearable(plan([], 80), Held(None, ()))


def test_packs_that_are_there_count_too(inline, tmp_path, monkeypatch) -> None:
    corpus, index = many_documents(tmp_path / "corpus"), tmp_path / "index"
    built = inline(corpus, index)
    before = identities(index)
    monkeypatch.setattr(plansize, "MOST_UNITS", built.units)
    monkeypatch.setattr(plansize, "MANY_UNITS", built.units - 1)
    assert not inline(corpus, index).published  # nothing to do is no plan
    write_corpus(corpus, {"new.txt": text(100, 500)})
    with pytest.raises(BuildError, match="after `sift-index compact`"):
        inline(corpus, index)
    assert identities(index) == before


def test_a_manifest_of_the_most_units_can_be_read(inline, tmp_path) -> None:
    corpus, index = many_documents(tmp_path / "corpus"), tmp_path / "index"
    large = inline(corpus, index)
    few = tmp_path / "few"
    small = inline(corpus, few, unit_tokens=1 << 20)
    sizes = [IndexPaths(root).manifest_path(1).stat().st_size for root in (index, few)]
    a_unit = (sizes[0] - sizes[1]) / (large.units - small.units)
    assert 200 < a_unit < 290
    assert plansize.MOST_UNITS * a_unit < MAX_JSON_BYTES


SIZES = re.search(r"### Sizes\n(.*?)\n## ", SPEC, re.DOTALL)[1]  # type: ignore[index]


def spoken(value: float) -> str:
    """A number as the page writes it: three digits, or two and a decimal."""
    for unit, name in ((1e9, " GB"), (1e6, " MB"), (1e3, " KB")):
        if value >= unit:
            digits = 1 if value < 10 * unit else 0
            return f"{value / unit:.{digits}f}{name}"
    return f"{value:.0f}"


@pytest.mark.parametrize(("column", "budget"), [(2, 16_384), (3, 131_072), (4, 1_048_576)])
def test_the_sizes_in_the_specification_follow_from_its_formulae(column, budget) -> None:
    documents, tokens, name = 100_000_000, 500, 16
    packs = documents * tokens / budget
    rows = [
        [cell.strip() for cell in line.split("|")] for line in SIZES.splitlines() if "|" in line
    ]
    cells = {row[1].split(" (")[0]: row[column + 1] for row in rows}
    assert spoken(272 * packs + 2_000) in cells["manifest"]
    assert ("refused" in cells["manifest"]) == (packs > plansize.MOST_UNITS)
    assert spoken(documents * (32 + 20 + name)) == cells["key table"]
    assert spoken(35 * documents + 600 * packs) == cells["receipts, all together"]
    count = float(cells["packs"].split()[0].replace(",", "")) * (
        1e6 if "million" in cells["packs"] else 1
    )
    assert count == pytest.approx(packs, rel=2e-3)


def test_the_limits_in_the_specification_are_those_of_the_code() -> None:
    assert f"**{plansize.MANY_UNITS:,}**" in SIZES and f"{plansize.MOST_UNITS:,} and warns" in SIZES
    assert f"{MAX_JSON_BYTES >> 20} MiB" in SIZES
