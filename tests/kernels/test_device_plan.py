"""Tables decoded for all layers at once against the reference's key list, span by span."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_index.formats.errors import PlanError
from sift_index.kernels import row_tiles as columns
from sift_index.kernels.api import MaskLayout, SparsePlan
from sift_index.kernels.bits import la_tiles
from sift_index.kernels.ca_list import ca_list, glue_keys
from sift_index.kernels.device_plan import DevicePlan, device_plan
from sift_index.kernels.plan import TILE, row_blocks
from sift_index.kernels.prompt_tables import span_table, tile_table
from tests.kernels.naive import random_plan

CPU = torch.device("cpu")


@st.composite
def plans(draw: st.DrawFn) -> SparsePlan:
    levels = draw(st.sampled_from([1, 2]))
    layout = MaskLayout(
        layers=draw(st.integers(1, 3)),
        heads=4,
        mask_heads=draw(st.sampled_from([1, 2, 4])),
        page_size=draw(st.sampled_from([8, 16, 32, 64, 128])),
        levels=levels,
        boundary=draw(st.sampled_from([0, 64, 128, 256])),
    )
    segments = []
    for _ in range(draw(st.integers(0, 40))):
        if draw(st.booleans()):
            segments.append(("glue", draw(st.integers(1, 200))))
        # Short spans are the ones whose windows cross several others.
        segments.append(("span", draw(st.one_of(st.integers(1, 40), st.integers(1, 700)))))
    segments.append(("glue", draw(st.integers(0, 50))))
    plan = random_plan(layout, segments, seed=draw(st.integers(0, 99)))
    return replace(plan, level=draw(st.integers(1, 2**levels - 1)))


def listed_keys(plan: DevicePlan, layer: int) -> np.ndarray:
    """Bool [mask_heads, length]: keys of the pages that take room in the list."""
    taken = plan.offsets[layer].diff(dim=-1).numpy()
    lengths = plan.page_length.numpy()
    assert ((taken == 0) | (taken == lengths)).all()
    return (taken > 0).repeat(lengths, axis=1)


@settings(max_examples=40, deadline=None)
@given(plans())
def test_lists_and_counts_equal_the_references(plan):
    decoded = device_plan(plan, CPU)
    group = plan.layout.heads // plan.layout.mask_heads
    glue = glue_keys(plan, CPU).numpy()
    for layer in range(plan.layout.layers):
        listed = listed_keys(decoded, layer).repeat(group, axis=0)
        truth = ca_list(plan, layer)
        np.testing.assert_array_equal(listed, truth.kept.numpy() | glue)
        before = np.concatenate(([0], np.cumsum(glue)))
        windows = [plan.window_start(index) for index in range(len(plan.spans))]
        starts = [span.start for span in plan.spans]
        counts = decoded.counts[layer].repeat_interleave(group, dim=0).numpy()
        np.testing.assert_array_equal(counts[:, 0], 0)
        first, rest = truth.count_first.numpy(), truth.count.numpy()
        np.testing.assert_array_equal(counts[:, 1::2], first + before[windows])
        np.testing.assert_array_equal(counts[:, 2::2], rest + before[starts])


def rows_of(lines: np.ndarray) -> list[int]:
    """The positions of the wanted rows of some tiles, for keys that lie at their positions."""
    rows = lines[:, [columns.BEGIN, columns.FIRST, columns.STOP]].tolist()
    return [row for begin, first, stop in rows for row in range(begin + first, begin + stop)]


def said_of_rows(lines: np.ndarray) -> dict[int, tuple[int, int]]:
    """What lines say of each wanted row: where its own keys begin, and its list prefix."""
    return {
        line[columns.BEGIN] + row: (piece.own_start, piece.slot)
        for line in lines.tolist()
        for piece in columns.pieces_of(line)
        for row in range(piece.first, piece.stop)
    }


def true_of_rows(plan: SparsePlan, row_start: int, row_stop: int) -> dict[int, tuple[int, int]]:
    """What the reference's blocks say of rows; glue sees all of its own, and no list."""
    found: dict[int, tuple[int, int]] = {}
    for block in row_blocks(plan, row_start, row_stop):
        own, slot = 0, 0
        if block.span is not None:
            first = block.tile_row == 0
            own = plan.window_start(block.span) if first else plan.spans[block.span].start
            slot = 1 + 2 * block.span + (not first)
        found |= dict.fromkeys(range(block.begin, block.end), (own, slot))
    return found


@settings(max_examples=40, deadline=None)
@given(plans())
def test_lines_say_what_the_references_blocks_say(plan):
    decoded = device_plan(plan, CPU)
    lines = decoded.row_tiles
    assert said_of_rows(lines) == true_of_rows(plan, 0, plan.length)
    assert rows_of(lines) == list(range(plan.length))
    assert (lines[:, columns.STOP] <= TILE).all() and (lines[:, columns.LEVEL] == plan.level).all()
    marked = {}
    for block in row_blocks(plan, 0, plan.length):
        if block.span is not None and plan.spans[block.span].la is not None and block.tile_row:
            marked[block.begin] = (block.end - block.begin, block.tile_row)
    with_bits = lines[lines[:, columns.LA_BASE] != columns.DENSE]
    assert (with_bits[:, columns.PIECE_ROWS] == TILE).all()
    assert marked == {
        line[columns.BEGIN]: (line[columns.STOP], line[columns.TILE_ROW])
        for line in with_bits.tolist()
    }


@pytest.mark.parametrize(
    ("tokens", "tiles"),
    [
        ([128, 256, 128], 4),  # full: nothing to share
        ([100, 100, 100, 84], 3),  # 384 rows
        ([10] * 5, 2),  # a tile has 4 pieces
        ([150, 150], 3),  # 300 rows: 128, 22 with 106, 22 with 22
        ([1020] * 2, 16),  # one tile of 16 less is not worth masks
        ([60, 60, 512, 60, 60], 6),  # the third has LA bits, which rows behind its first 128 read
    ],
)
def test_short_spans_share_tiles(tokens, tiles):
    layout = MaskLayout(1, 2, 2, 32)
    segments = [("glue", 9), *(("span", n) for n in tokens), ("glue", 7)]
    plan = random_plan(layout, segments)
    lines = device_plan(plan, CPU).row_tiles
    assert len(lines) == tiles + 2
    assert (lines[[0, -1], columns.SLOT] == 0).all()  # glue shares no tile


@settings(max_examples=15, deadline=None)
@given(plans())
def test_packed_tiles_are_found_where_the_table_says(plan):
    decoded, layout = device_plan(plan, CPU), plan.layout
    bits, neighbour = decoded.bits.numpy(), layout.neighbour
    group, layer = layout.heads // layout.mask_heads, layout.layers - 1
    for row in decoded.row_tiles.tolist():
        if row[columns.LA_BASE] == columns.DENSE:
            continue
        truth = la_tiles(plan.spans[(row[columns.SLOT] - 1) // 2], layer, layout, plan.level)
        r = row[columns.TILE_ROW]
        for head in range(layout.heads):
            base = row[columns.LA_BASE]
            base += (layer * layout.mask_heads + head // group) * row[columns.LA_STRIDE]
            for c in range(r):
                at = (r * (r + 1) // 2 + c) * layout.levels
                value = bits[base + at // 8] >> (8 - layout.levels - at % 8)
                on = value % 2**layout.levels >= plan.level or (neighbour and c == r - 1)
                assert on == truth[head, r, c].item()


@settings(max_examples=40, deadline=None)
@given(plans())
def test_pages_cover_the_prompt_and_never_cross_a_border(plan):
    decoded = device_plan(plan, CPU)
    start, length = decoded.page_start.tolist(), decoded.page_length.tolist()
    assert [at + n for at, n in zip(start, length, strict=True)] == [*start[1:], plan.length][
        : len(start)
    ]
    assert all(1 <= n <= plan.layout.page_size for n in length)
    needed = {span.start for span in plan.spans}
    needed |= {plan.window_start(index) for index in range(len(plan.spans))}
    assert needed <= set(start)
    for at, span in zip(start, decoded.pages.span.tolist(), strict=True):
        holder = [i for i, s in enumerate(plan.spans) if s.start <= at < s.stop]
        assert span == (holder[0] if holder else -1)


@settings(max_examples=40, deadline=None)
@given(plans(), st.data())
def test_a_chunk_runs_the_tiles_it_meets_and_lists_what_they_read(plan, data):
    decoded = device_plan(plan, CPU)
    row_start = data.draw(st.integers(0, plan.length + 300))
    row_stop = data.draw(st.integers(row_start, plan.length + 600))
    chunk = decoded.chunk(row_start, row_stop)
    lines = chunk.work.row_tiles.numpy()
    assert sorted(rows_of(lines)) == list(range(row_start, row_stop))
    assert said_of_rows(lines) == true_of_rows(plan, row_start, row_stop)
    known = set(decoded.row_tiles[:, columns.BEGIN].tolist())
    behind = {plan.length + TILE * i for i in range(6)}
    assert set(lines[:, columns.BEGIN].tolist()) <= known | behind | {row_start}
    # Nothing is said of keys that no wanted row sees: they may be neither copied nor compacted.
    true = true_of_rows(plan, row_start, row_stop).values()
    assert set(lines[:, columns.OWN_STARTS].flat) <= {own for own, _ in true}
    assert set(lines[:, columns.SLOTS].flat) <= {slot for _, slot in true}
    assert (lines[:, columns.ROW] == lines[:, columns.BEGIN] - row_start).all()
    met = row_blocks(plan, row_start, row_stop)
    used = [plan.spans[block.span].start for block in met if block.span is not None]
    assert chunk.list_stop == max(used, default=0)
    assert chunk.pages == sum(at < chunk.list_stop for at in decoded.page_start.tolist())


def test_the_host_never_waits_for_the_device():
    """On the meta device there are no values: any `.item()` or `nonzero` would raise."""
    plan = random_plan(MaskLayout(2, 4, 2, 32, levels=2), [("glue", 9), ("span", 700), ("span", 5)])
    real, shapes = device_plan(plan, CPU), device_plan(plan, "meta")
    for name in ("page_start", "offsets", "counts", "starts", "bits"):
        found, expected = getattr(shapes, name), getattr(real, name)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert shapes.device.type == "meta"


def test_glue_is_listed_whatever_the_level():
    plan = random_plan(MaskLayout(1, 2, 2, 16), [("glue", 20), ("span", 40), ("glue", 3)])
    decoded = device_plan(replace(plan, level=2), CPU)
    assert decoded.offsets[0, :, -1].tolist() == [23, 23]


@pytest.mark.parametrize("segments", [[], [("glue", 1)], [("span", 1)]])
def test_the_smallest_prompts(segments):
    plan = random_plan(MaskLayout(1, 2, 2, 32), segments)
    decoded = device_plan(plan, CPU)
    assert decoded.chunk(0, 1) is decoded.chunk(0, 1) != decoded.chunk(0, 2)
    assert len(decoded.page_start) == len(decoded.row_tiles) == len(segments)
    assert decoded.row_tiles.shape == (len(segments), columns.ROW_COLUMNS)
    assert len(decoded.counts[0, 0]) == 1 + 2 * len(plan.spans)


def test_a_plan_that_does_not_fit_itself_is_refused():
    plan = random_plan(MaskLayout(1, 2, 2, 32), [("glue", 4), ("span", 400), ("span", 100)])
    first, second = plan.spans
    for spans, message in {
        (second, first): "order the spans",
        (first, replace(second, stop=600)): r"within \[404, 504\), found \[404, 600\)",
        (replace(first, ca=first.ca[..., :1]), second): r"CA bits of shape \[1, 2, 2\]",
        (replace(first, la=second.ca), second): r"LA bits of shape \[1, 2, 2\], found \[1, 2, 1\]",
    }.items():
        with pytest.raises(PlanError, match=message):
            device_plan(replace(plan, spans=spans), CPU)
    with pytest.raises(PlanError, match="multiple of mask_heads"):
        device_plan(replace(plan, layout=MaskLayout(1, 3, 2, 32)), CPU)


def test_windows_equal_the_plans():
    segments = [("glue", 150), *[("span", n) for n in (40, 1, 90, 300, 7, 7)], ("glue", 60)]
    for boundary in (0, 64, 128, 500):
        plan = random_plan(MaskLayout(1, 2, 2, 8, boundary=boundary), [*segments, *segments[1:]])
        spans = span_table(plan)
        expected = [plan.window_start(index) for index in range(len(plan.spans))]
        assert spans.window.tolist() == expected
        assert tile_table(plan, spans).end[-1] == plan.length


def test_dense_tiles_come_first_and_the_last_of_each_kind_before_the_others():
    plan = random_plan(MaskLayout(1, 2, 2, 32), [("glue", 130), ("span", 300), ("glue", 5)])
    chunk = device_plan(plan, CPU).chunk(100, 700)
    # Tiles: two of glue, three of the span, one of glue, and three behind the plan.
    begins = [100, 128, 130, 258, 386, 430, 435, 563, 691]
    order = [8, 7, 6, 5, 1, 0, 4, 3, 2]
    assert chunk.work.row_tiles[:, columns.BEGIN].tolist() == [begins[at] for at in order]
    assert chunk.work.dense == 6
    none = device_plan(plan, CPU).chunk(900, 900).work
    assert none.row_tiles.shape == (0, columns.ROW_COLUMNS) and none.dense == 0
