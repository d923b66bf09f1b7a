"""Another prefix at serving time: prompts have it, masks stay those made behind their own."""

import warnings

import pytest
import torch

from sift_index.errors import FingerprintMismatchError, SiftWarning
from sift_index.evaluation.methods.registry import Setting, make_methods
from sift_index.evaluation.run import EvalOptions, evaluate
from sift_index.runtime.index import SiftIndex
from sift_index.runtime.plan import PromptPlan
from tests.evaluation.spoken import LAYOUT, MODEL, TEXTS, WRITER, questions
from tests.plans import write_index
from tests.selection.observed import write_probes

OTHER = "<s>You are a careful editor of tide tables:"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("serve_prefix")
    write_probes(found / "probes")
    (found / "mine.yaml").write_text(
        "rule: probe\nprobe_source: probes\nprobe_tokens: 200\nprobe_rows: 200\n"
        "ca_thresholds: [0.05]\nla_dense_tiles: 1\nla_thresholds: [0.01]\n"
    )
    write_index(
        found / "index", MODEL, LAYOUT, {text[:12]: [WRITER.document(text)] for text in TEXTS}
    )
    return found


def open_index(folder, strict: bool = False) -> SiftIndex:
    return SiftIndex.open(folder / "index", MODEL.model, MODEL.tokenizer, strict=strict)


def plan_of(setting: Setting, name: str = "sift") -> PromptPlan:
    (method,) = make_methods([name], setting).values()
    plan = method(setting.writer.prompt(TEXTS, "Why?")).plan
    assert plan is not None
    return plan


def assert_same_masks(found: PromptPlan, own: PromptPlan) -> None:
    """Compare the documents' bits; each stands as much later as the prefix is longer."""
    added = len(MODEL.tokenizer(OTHER).input_ids) - len(WRITER.prefix())
    assert added > 0 and len(found.sparse.spans) == len(own.sparse.spans) == len(TEXTS)
    for ours, theirs in zip(found.sparse.spans, own.sparse.spans, strict=True):
        assert (ours.start, ours.stop) == (theirs.start + added, theirs.stop + added)
        assert torch.equal(ours.ca, theirs.ca)
        assert (ours.la is None) == (theirs.la is None)
        assert ours.la is None or theirs.la is None or torch.equal(ours.la, theirs.la)


def test_only_the_prompt_has_the_prefix():
    setting = Setting(MODEL, serve_prefix=OTHER)
    assert setting.prefix == Setting(MODEL).prefix == WRITER.prefix()
    assert setting.writer.prefix() == MODEL.tokenizer(OTHER).input_ids
    assert setting.writer.document("a") == WRITER.document("a")
    assert setting.writer.query("a") == WRITER.query("a")
    assert Setting(MODEL, serve_prefix="").writer.prefix() == []


def test_documents_are_extracted_behind_the_model_s_own_prefix(folder):
    policy = str(folder / "mine.yaml")
    own = plan_of(Setting(MODEL, None, policy))
    found = plan_of(Setting(MODEL, None, policy, serve_prefix=OTHER))
    assert_same_masks(found, own)
    assert 0 < own.density.ca.share < 1


def test_an_index_serves_its_masks_and_warns(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own = plan_of(Setting(MODEL, open_index(folder)))
    setting = Setting(MODEL, open_index(folder), serve_prefix=OTHER)
    assert setting.prefix == WRITER.prefix()
    with pytest.warns(SiftWarning, match="not the prefix the index was built behind"):
        found = plan_of(setting)
    assert_same_masks(found, own)
    assert len(found.warnings) == 1


def test_a_strict_index_refuses(folder):
    setting = Setting(MODEL, open_index(folder, strict=True), serve_prefix=OTHER)
    with pytest.raises(FingerprintMismatchError, match="strict: the tokens before the first docum"):
        plan_of(setting)
    same = Setting(MODEL, open_index(folder, strict=True), serve_prefix=WRITER.template.prefix)
    assert plan_of(same).warnings == ()


@pytest.mark.filterwarnings("ignore::sift_index.errors.SiftWarning")
@pytest.mark.parametrize("prefix", [OTHER, ""])
def test_every_method_is_compared_with_dense_behind_the_same_prefix(folder, prefix):
    names = ["dense", "sift", "no-cross", "kv-reuse", "epic:9", "cacheblend"]
    setting = Setting(MODEL, open_index(folder), serve_prefix=prefix)
    options = EvalOptions(generate=False, recall=False)
    (one,) = evaluate(setting, questions()[:1], names, options).asked
    assert one.tokens - len(MODEL.tokenizer(prefix).input_ids) == sum(
        len(part.ids) for part in WRITER.prompt(questions()[0].documents, questions()[0].question)
    ) - len(WRITER.prefix())
    assert one.scores["dense"].kl == 0.0
    assert all(one.scores[name].kl > 0 for name in names[1:])
