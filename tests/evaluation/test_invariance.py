"""Both claims of the paper on tiny models, against full float64 attention and sets of tiles."""

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from sift_index.errors import UsageError
from sift_index.evaluation import invariance
from sift_index.evaluation.figures import save_figure
from sift_index.evaluation.invariance import (
    Invariance,
    InvarianceReport,
    Limits,
    cross_table,
    invariance_rows,
    invariance_values,
    local_table,
    measure_invariance,
    measure_predictors,
    plot_invariance,
)
from sift_index.evaluation.metrics import bootstrap
from sift_index.evaluation.questions import Question
from sift_index.formats.masks import DocumentMasks
from sift_index.models.presets import PromptTemplate
from sift_index.prompts import PromptWriter, Segment
from sift_index.selection.extractor import Extractor
from sift_index.selection.policy import PaperPolicy, ProbePolicy
from tests.plans import TEMPLATE, layout_of, loaded, masks_of, tiny
from tests.selection.observed import observe, write_probes

MODEL = loaded(tiny("llama"))
WRITER = PromptWriter(MODEL.tokenizer, TEMPLATE)
# In documents as short as these every tile has a score of 0.001, whatever the model.
LIMITS = Limits(alpha=0.5, beta=0.015)
TILES = ("tile_recall", "cell_recall", "precision", "jaccard")
LA = (*TILES, "mass", "density_alone", "density_prompt")
CA = ("cells", "mass", "density")


def text(length: int, seed: int) -> str:
    letters = np.random.default_rng(seed).integers(97, 123, length).astype(np.uint8)
    return letters.tobytes().decode()


TEXTS = [text(n, n) for n in (140, 400, 90, 300, 256)]
QUESTIONS = [
    Question("one", "Which?", ("x",), tuple(TEXTS[:4])),
    Question("two", "Why?", ("x",), (TEXTS[3], TEXTS[1], TEXTS[4])),
]
SHORT = [Question("short", "?", ("x",), (TEXTS[2], TEXTS[2][:50]))]


class GlueWriter(PromptWriter):
    """Puts glue between documents, which are then not neighbours."""

    def prompt(self, documents, question):
        prefix, *spans, query = super().prompt(documents, question)
        parts = [part for span in spans for part in (span, Segment([7] * 9, glue=True))]
        return [prefix, *parts, query]


WRITERS = {
    "prefix": WRITER,
    "none": PromptWriter(MODEL.tokenizer, PromptTemplate(prefix="", query="?{question}")),
    "glue": GlueWriter(MODEL.tokenizer, TEMPLATE),
}


@dataclass(frozen=True)
class Shares:
    """What a prompt must give: name -> (part, whole), each [layers, heads]."""

    counts: dict[str, tuple[np.ndarray, np.ndarray]]

    def by_layer(self, name: str) -> np.ndarray:
        part, whole = self.counts[name]
        with np.errstate(invalid="ignore"):
            return np.nanmean(part / whole, -1)

    def pooled(self, name: str) -> float:
        part, whole = self.counts[name]
        return float(part.sum() / whole.sum())


def expected(writer: PromptWriter, question: Question, masks_by_name) -> Shares:
    """Count cells of full attention one by one, nothing reduced on the way."""
    segments = writer.prompt(question.documents, question.question)
    ids = [i for segment in segments for i in segment.ids]
    spans, at = [], 0
    for segment in segments:
        if not segment.glue and at > 0:
            spans.append((at, at + len(segment.ids)))
        at += len(segment.ids)
    document_of = np.full(len(ids), -1)
    for number, (start, stop) in enumerate(spans):
        document_of[start:stop] = number
    rows, keys = document_of[:, None], document_of[None, :]
    cross = (rows > keys) & (keys >= 0)
    seen = observe(MODEL.model, ids)
    layers = []
    for layer in range(2):
        p = seen.probabilities(layer)
        counts = own_counts(writer.prefix(), ids, spans, p, layer)
        counts["ca_high"] = ((p >= LIMITS.beta) & cross).sum((1, 2)), np.full(4, cross.sum())
        for name, make in masks_by_name.items():
            kept = np.zeros((4, len(ids)), bool)
            for start, stop in spans:
                mask = make(ids[start:stop]).ca
                pages = mask.unpacked()[layer].repeat(mask.granule, -1)[:, : stop - start]
                kept[:, start:stop] = pages.repeat(4 // len(pages), 0)
            found = cross & kept[:, None, :]
            high = (p >= LIMITS.beta) & cross
            counts[f"{name}.cells"] = (high & found).sum((1, 2)), high.sum((1, 2))
            counts[f"{name}.mass"] = (p * found).sum((1, 2)), (p * cross).sum((1, 2))
            counts[f"{name}.density"] = found.sum((1, 2)), np.full(4, cross.sum())
        layers.append(counts)
    return Shares(
        {
            name: (np.stack([c[name][0] for c in layers]), np.stack([c[name][1] for c in layers]))
            for name in layers[0]
        }
    )


def own_counts(prefix, ids, spans, p, layer):
    """Return counts of one layer from lists of tiles, [heads, tiles] each."""
    alone, high, mass = [], [], []
    for start, stop in spans[1:]:
        by_itself = observe(MODEL.model, [*prefix, *ids[start:stop]]).probabilities(layer)
        by_itself = by_itself[:, len(prefix) :, len(prefix) :]
        own = p[:, start:stop, start:stop]
        for r in range(0, stop - start, 128):
            for c in range(0, r, 128):
                tile = own[:, r : r + 128, c : c + 128]
                alone.append(by_itself[:, r : r + 128, c : c + 128].max((1, 2)) >= LIMITS.alpha)
                high.append((tile >= LIMITS.alpha).sum((1, 2)))
                mass.append(tile.sum((1, 2)))
    a, h, m = np.stack(alone, -1), np.stack(high, -1), np.stack(mass, -1)
    on, tiles = h > 0, np.full(4, a.shape[-1])
    pairs = {
        "tile_recall": (a & on, on),
        "cell_recall": (h * a, h),
        "precision": (a & on, a),
        "jaccard": (a & on, a | on),
        "mass": (m * a, m),
    }
    sums = {name: (part.sum(-1), whole.sum(-1)) for name, (part, whole) in pairs.items()}
    return {**sums, "density_alone": (a.sum(-1), tiles), "density_prompt": (on.sum(-1), tiles)}


def flat(found: Invariance[Any]) -> dict[str, Any]:
    """Return the numbers of a report by the names `expected` gives them."""
    own = {name: getattr(found.la, name) for name in LA}
    cross = {f"{p}.{name}": getattr(found.ca[p], name) for p in found.ca for name in CA}
    return {**own, "ca_high": found.ca_high, **cross}


def same(value: float):
    return pytest.approx(value, abs=1e-3, nan_ok=True)


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    probes = write_probes(tmp_path_factory.mktemp("probes"))
    probe = ProbePolicy(
        window=16,
        probe_source=probes,
        probe_tokens=200,
        ca_thresholds=(0.014,),
        head_sharing="kv",
        skip_last_layer=False,
    )
    return {"strict": PaperPolicy(gamma=0.08), "probe": probe}


def makers(policies, writer) -> dict[str, Callable[[Sequence[int]], DocumentMasks]]:
    extractors = {n: Extractor(MODEL, p, writer.prefix()) for n, p in policies.items()}
    return {name: extractor.extract for name, extractor in extractors.items()}


@pytest.fixture(scope="module")
def report(policies) -> InvarianceReport:
    return measure_invariance(MODEL, WRITER, QUESTIONS, policies, limits=LIMITS)


@pytest.fixture(scope="module")
def prompts(policies) -> list[Shares]:
    return [expected(WRITER, question, makers(policies, WRITER)) for question in QUESTIONS]


def assert_layers(report: InvarianceReport, prompts: Sequence[Shares]) -> None:
    assert len(report.layers) == 2
    for number, layer in enumerate(report.layers):
        for name, value in flat(layer).items():
            assert value == same(np.mean([p.by_layer(name)[number] for p in prompts])), name


def test_every_number_of_every_layer_is_that_of_full_attention(report, prompts):
    assert_layers(report, prompts)
    names = set(flat(report.layers[1]))
    assert names == {*LA, "ca_high", *(f"{p}.{n}" for p in ("strict", "probe") for n in CA)}
    for name, value in flat(report.layers[1]).items():
        assert 0.002 < value < 0.998, f"{name} says nothing: {value}"


def test_overall_and_pooled_are_bootstrapped_over_prompts(report, prompts):
    overall, pooled = flat(report.overall), flat(report.pooled)
    for name in overall:
        for found, values in (
            (overall[name], [float(np.mean(p.by_layer(name))) for p in prompts]),
            (pooled[name], [p.pooled(name) for p in prompts]),
        ):
            wanted = bootstrap(values)
            assert (found.mean, found.low, found.high) == (
                same(wanted.mean),
                same(wanted.low),
                same(wanted.high),
            ), name
    assert overall["mass"].low < overall["mass"].high
    apart = max(abs(overall[name].mean - pooled[name].mean) for name in overall)
    assert apart > 0.005, "the two means must be told apart"


@pytest.mark.parametrize("name", ["none", "glue"])
def test_other_prompts_are_measured_as_they_are_composed(policies, name):
    writer = WRITERS[name]
    found = measure_invariance(MODEL, writer, QUESTIONS[:1], policies, limits=LIMITS)
    assert_layers(found, [expected(writer, QUESTIONS[0], makers(policies, writer))])
    assert found.documents == (3 if name == "none" else 4)


def test_the_size_of_the_blocks_does_not_matter(report, policies, monkeypatch):
    monkeypatch.setattr(invariance.sums, "block_scores", lambda device: 1)
    small = measure_invariance(MODEL, WRITER, QUESTIONS, policies, limits=LIMITS)
    for found, wanted in zip(small.layers, report.layers, strict=True):
        assert flat(found) == pytest.approx(flat(wanted), abs=1e-6)


def test_what_was_counted(report):
    assert (report.prompts, report.documents, report.la_documents) == (2, 7, 4)
    assert report.limits == LIMITS


def test_the_papers_limits_are_the_default():
    found = measure_invariance(MODEL, WRITER, QUESTIONS[:1], {})
    assert (found.limits.alpha, found.limits.beta) == (0.001, 0.01)
    assert found.layers[0].la.density_prompt > 0.9
    assert found.layers[0].ca == {}


def test_claim_1_holds_where_scores_do_not_depend_on_other_documents():
    # Attention that adds nothing: what a token is does not depend on others. Documents in front
    # can then only lower its probabilities, so that no tile becomes high that was not.
    model = tiny("llama")
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
    found = measure_invariance(loaded(model), WRITER, QUESTIONS, {}, limits=LIMITS)
    for layer in found.layers:
        assert (layer.la.tile_recall, layer.la.cell_recall) == (1.0, 1.0)
        assert layer.la.precision == same(layer.la.jaccard)
        assert 0.05 < layer.la.density_prompt < layer.la.density_alone < 0.95


def test_it_does_not_hold_where_they_do(report):
    assert report.layers[0].la.tile_recall == 1.0  # what the first layer sees is the text alone
    assert report.layers[1].la.tile_recall < 0.98
    assert report.layers[1].la.cell_recall < 0.98


class Fixed:
    """Hand-made masks, and which documents were asked for."""

    def __init__(self, kind: str) -> None:
        self.layout = layout_of(MODEL.model)
        self.asked: list[int] = []
        self._kind = kind

    def extract(self, ids):
        self.asked.append(len(ids))
        return masks_of(ids, self.layout, self._kind)


def test_all_pages_find_everything_and_no_pages_nothing():
    kinds = {"on": Fixed("on"), "off": Fixed("off")}
    found = measure_predictors(MODEL, WRITER, QUESTIONS, kinds, limits=LIMITS)
    for layer in found.layers:
        assert [getattr(layer.ca["on"], name) for name in CA] == [1.0, 1.0, 1.0]
        assert [getattr(layer.ca["off"], name) for name in CA] == [0.0, 0.0, 0.0]


def test_random_pages_against_full_attention():
    predictor = Fixed("random")
    found = measure_predictors(MODEL, WRITER, QUESTIONS, {"random": predictor}, limits=LIMITS)
    make = {"random": Fixed("random").extract}
    assert_layers(found, [expected(WRITER, question, make) for question in QUESTIONS])
    assert found.pooled.ca["random"].density.mean == pytest.approx(0.5, abs=0.1)


def test_a_document_runs_once_however_often_it_comes():
    predictor, runs, end = Fixed("on"), [], len(WRITER.document(""))
    hook = MODEL.model.base_model.register_forward_hook(
        lambda module, args, kwargs, out: runs.append(kwargs["input_ids"].shape[1]),
        with_kwargs=True,
    )
    measure_predictors(MODEL, WRITER, [*QUESTIONS, QUESTIONS[0]], {"on": predictor}, limits=LIMITS)
    hook.remove()
    # The last document of a prompt is seen by no other; the first, and short ones, need no run.
    assert predictor.asked == [140 + end, 400 + end, 90 + end, 300 + end]
    prefix = len(WRITER.prefix()) + end
    lengths = [sum(len(s.ids) for s in WRITER.prompt(q.documents, q.question)) for q in QUESTIONS]
    alone = [prefix + 400, prefix + 300, prefix + 256]
    assert sorted(runs) == sorted([*alone, *lengths, lengths[0]])


@pytest.mark.filterwarnings("error")
def test_documents_of_one_tile_have_no_claim_1():
    found = measure_predictors(MODEL, WRITER, SHORT, {"on": Fixed("on")}, limits=LIMITS)
    assert (found.documents, found.la_documents) == (2, 0)
    assert all(math.isnan(getattr(found.layers[0].la, name)) for name in LA)
    assert math.isnan(found.overall.la.mass.low)
    assert found.layers[0].ca["on"].mass == 1.0
    assert {row[1] for row in local_table(found)[1]} == {"-"}
    values = invariance_values(found)
    assert values["layers"][1]["la"]["mass"] is None
    assert values["overall"]["la"]["mass"] == {"mean": None, "low": None, "high": None}
    json.dumps(values, allow_nan=False)


def test_a_prompt_without_claim_1_does_not_spoil_the_others():
    both = measure_invariance(MODEL, WRITER, [*SHORT, QUESTIONS[0]], {}, limits=LIMITS)
    alone = measure_invariance(MODEL, WRITER, [QUESTIONS[0]], {}, limits=LIMITS)
    assert both.layers[1].la == alone.layers[1].la
    assert both.overall.la == alone.overall.la
    assert both.layers[1].ca_high != alone.layers[1].ca_high


def test_the_tables_have_a_row_per_layer_and_means_at_the_end(report):
    (own, own_rows), (cross, cross_rows) = local_table(report), cross_table(report)
    assert own == ["layer", "LA tiles", "LA cells", "precision", "Jaccard", "LA mass"] + [
        "on alone",
        "on prompt",
    ]
    assert cross[:5] == ["layer", "high %", "strict cells", "strict mass", "strict CA"]
    assert cross[5:] == ["probe cells", "probe mass", "probe CA"]
    for rows in (own_rows, cross_rows):
        assert [row[0] for row in rows] == ["0", "1", "pooled", "all"]
    means = [report.layers[1], report.pooled, report.overall]
    for own_row, cross_row, found in zip(own_rows[1:], cross_rows[1:], means, strict=True):
        numbers = {n: getattr(value, "mean", value) for n, value in flat(found).items()}
        numbers["ca_high"] *= 100
        shown = [f"{number:.3f}" for number in numbers.values()]
        assert own_row[1:] + cross_row[1:] == shown


def test_rows_hold_both_claims_with_intervals(report):
    rows = invariance_rows(report, "tiny", "hops+mills", torch.device("cpu"))
    by_name = {(row.case, row.metric): row.value for row in rows}
    assert len(by_name) == len(rows)
    la, ca = "tiny/hops+mills/alpha 0.5", "tiny/hops+mills/beta 0.015"
    assert {case for case, _ in by_name} == {la, f"{ca}/strict", f"{ca}/probe"}
    for kind, means in (("pooled", report.pooled), ("overall", report.overall)):
        shares = {(la, name): getattr(means.la, name) for name in LA}
        for policy in means.ca:
            found = {name: getattr(means.ca[policy], name) for name in CA}
            found["high"] = means.ca_high
            shares |= {(f"{ca}/{policy}", name): share for name, share in found.items()}
        for (case, name), share in shares.items():
            for end, value in (("", share.mean), ("_lo", share.low), ("_hi", share.high)):
                assert by_name.pop((case, f"{kind}_{name}{end}")) == value
    documents = {la: 4.0, f"{ca}/strict": 7.0, f"{ca}/probe": 7.0}
    assert by_name == {
        **{(case, "prompts"): 2.0 for case in documents},
        **{(case, "documents"): count for case, count in documents.items()},
    }


def test_what_cannot_be_counted_has_no_row():
    found = measure_predictors(MODEL, WRITER, SHORT, {"on": Fixed("on")}, limits=LIMITS)
    rows = invariance_rows(found, "tiny", "short", torch.device("cpu"))
    assert all(math.isfinite(row.value) for row in rows)
    own = {row.metric: row.value for row in rows if "/alpha " in row.case}
    assert own == {"prompts": 1.0, "documents": 0.0}
    assert "pooled_mass" in {row.metric for row in rows}


def test_values_are_the_report(report):
    values = json.loads(json.dumps(invariance_values(report), allow_nan=False))
    assert {name: values[name] for name in ("prompts", "documents", "la_documents")} == {
        "prompts": 2,
        "documents": 7,
        "la_documents": 4,
    }
    assert (values["alpha"], values["beta"]) == (0.5, 0.015)
    assert [layer["layer"] for layer in values["layers"]] == [0, 1]
    layer = values["layers"][1]
    assert layer["la"] == vars(report.layers[1].la)
    assert layer["ca"]["probe"] == vars(report.layers[1].ca["probe"])
    assert layer["ca_high"] == report.layers[1].ca_high
    assert values["overall"]["la"]["mass"] == vars(report.overall.la.mass)
    assert values["pooled"]["ca"]["strict"]["cells"] == vars(report.pooled.ca["strict"].cells)


def test_the_plot_is_a_png_with_the_numbers_by_layer(report, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / "plot.png"
    figures: list[Any] = []

    def keep_and_save(figure, path):
        figures.append(figure)
        save_figure(figure, path)

    monkeypatch.setattr("sift_index.evaluation.invariance.plot.save_figure", keep_and_save)
    plot_invariance(report, path)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    local, cross = (
        {line.get_label(): list(line.get_ydata()) for line in axes.lines}
        for axes in figures[0].axes
    )
    assert local["high tiles found"] == [layer.la.tile_recall for layer in report.layers]
    assert local["high cells found"] == [layer.la.cell_recall for layer in report.layers]
    assert len(local) == 5 and len(cross) == 6
    for policy in ("strict", "probe"):
        cells = [layer.ca[policy].cells for layer in report.layers]
        density = [layer.ca[policy].density for layer in report.layers]
        assert cross[f"{policy}: high cells found"] == cells
        assert cross[f"{policy}: density"] == density


def test_a_plot_without_policies_or_claim_1_is_still_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    plot_invariance(measure_invariance(MODEL, WRITER, SHORT, {}), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 5000


def test_a_plot_needs_matplotlib_and_a_place(report, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written: .*give another path"):
        plot_invariance(report, tmp_path / "file" / "plot.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"pip install 'sift-index\[plot\]'"):
        plot_invariance(report, tmp_path / "plot.png")


def test_progress_counts_questions():
    seen: list[int] = []
    measure_invariance(MODEL, WRITER, QUESTIONS, {}, seen.append)
    assert seen == [1, 2]


@pytest.mark.parametrize(
    ("name", "documents", "count"), [("prefix", 1, 1), ("prefix", 0, 0), ("none", 2, 1)]
)
def test_too_few_documents_are_refused_before_anything_runs(name, documents, count):
    few = Question("few", "?", ("x",), tuple(TEXTS[:documents]))
    seen: list[int] = []
    message = f"question few: expected at least 2 documents behind the prefix, found {count}"
    with pytest.raises(UsageError, match=message):
        measure_invariance(MODEL, WRITERS[name], [QUESTIONS[0], few], {}, seen.append)
    assert seen == []


def test_a_prompt_longer_than_the_context_is_refused():
    small = loaded(tiny("llama", max_position_embeddings=300))
    with pytest.raises(UsageError, match="question one: expected at most 300 tokens .* found 9"):
        measure_invariance(small, WRITER, QUESTIONS, {})


def test_no_questions_are_refused():
    with pytest.raises(UsageError, match="expected at least one question"):
        measure_invariance(MODEL, WRITER, [], {})
