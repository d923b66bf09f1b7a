"""Methods by name: what each name makes, and which names and arguments are refused."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from sift_index.errors import UsageError
from sift_index.evaluation.forcing import prefilled
from sift_index.evaluation.methods.registry import KNOWN, Setting, make_methods
from sift_index.evaluation.methods.treatment import Dense, Treatment
from sift_index.fingerprints import prefix_digest
from sift_index.models.presets import PromptTemplate
from sift_index.runtime.index import SiftIndex
from sift_index.runtime.plan import PromptPlan
from sift_index.selection.extractor import Extractor
from sift_index.selection.policy import PaperPolicy, Policy, load_policy
from tests.evaluation.spoken import LAYOUT, MODEL, TEXTS, UNKNOWN, WRITER
from tests.kernels.naive import naive_mask
from tests.plans import compose, loaded, tiny, write_index
from tests.selection.observed import write_probes

PROMPT = WRITER.prompt([TEXTS[1], TEXTS[0], UNKNOWN], "Why?")
A, B, C = (list(part.ids) for part in PROMPT[1:4])
IDS = torch.tensor([[i for part in PROMPT for i in part.ids]])
PROBE = (
    "rule: probe\nprobe_source: probes\nprobe_tokens: 200\nprobe_rows: 200\n"
    "ca_thresholds: [0.05]\nla_dense_tiles: 1\nla_thresholds: [0.01]\n"
)


def open_index(folder, levels: int = 1) -> SiftIndex:
    """Return an index that lacks the last document of PROMPT."""
    path = folder / f"{levels}"
    layout = replace(LAYOUT, levels=levels)
    if not path.exists():
        write_index(path, MODEL, layout, {"a": [A], "b": [B]})
    return SiftIndex.open(path, MODEL.model)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("registry")
    write_probes(found / "probes")
    (found / "mine.yaml").write_text(PROBE)
    (found / "levels.yaml").write_text(PROBE.replace("[0.05]", "[0.05, 0.1, 0.2]"))
    return found


@pytest.fixture
def setting(folder):
    """A setting without an index, whose policy is quick to prepare."""
    return Setting(MODEL, None, str(folder / "mine.yaml"))


def treatment_of(name: str, setting: Setting, prompt=PROMPT) -> Treatment:
    (method,) = make_methods([name], setting).values()
    return method(prompt)


def plan_of(name: str, setting: Setting, prompt=PROMPT) -> PromptPlan:
    plan = treatment_of(name, setting, prompt).plan
    assert plan is not None
    return plan


def extracted(policy: Policy, prefix: list[int], level: int = 1) -> PromptPlan:
    extractor = Extractor(MODEL, policy, prefix)
    masks = [extractor.extract(part.ids) for part in PROMPT[1:-1]]
    return compose(MODEL.model, extractor.layout, PROMPT, masks, level)


def assert_same(found: PromptPlan, expected: PromptPlan) -> None:
    assert (found.outcomes, found.ids) == (expected.outcomes, expected.ids)
    assert found.sparse.level == expected.sparse.level
    for layer in range(2):
        assert np.array_equal(naive_mask(found.sparse, layer), naive_mask(expected.sparse, layer))
    assert 0.1 < found.density.ca.share


def density_after_prefill(treatment: Treatment) -> float:
    with prefilled(MODEL.model, IDS, treatment.attention(MODEL.model)):
        return treatment.density.total.share


# --- what the names make -----------------------------------------------------------------------


def test_every_known_name_makes_a_method(setting):
    names = [part.split("[")[0].split(":")[0] for part in KNOWN.split(", ")]
    assert len(set(names)) == 10
    asked = [f"policy:{setting.policy}" if name == "policy" else name for name in names]
    methods = make_methods(asked, setting)
    assert list(methods) == ["policy:mine" if name == "policy" else name for name in names]
    for name, method in methods.items():
        treatment = method(PROMPT)
        assert isinstance(treatment, Dense) == (name == "dense")
        assert (treatment.plan is None) == (name in ("dense", "kv-reuse", "cacheblend", "epic"))


def test_sift_serves_the_index(folder):
    index = open_index(folder)
    setting = Setting(MODEL, index)
    expected = index.compose(PROMPT)
    assert_same(plan_of("sift", setting), expected)
    assert_same(plan_of("sift:1", setting), expected)
    assert (expected.hits, expected.misses) == (2, 1)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_levels_are_those_of_the_index(folder, level):
    index = open_index(folder, 2)
    found = plan_of(f"sift:{level}", Setting(MODEL, index))
    assert_same(found, index.compose(PROMPT, level=level))
    assert found.sparse.level == level


def test_sift_without_an_index_extracts_by_the_setting_s_policy(folder, setting):
    expected = extracted(load_policy(setting.policy), WRITER.prefix())
    assert_same(plan_of("sift", setting), expected)
    assert expected.hits == 3
    levels = Setting(MODEL, None, str(folder / "levels.yaml"))
    expected = extracted(load_policy(levels.policy), WRITER.prefix(), level=3)
    for name in ("sift:3", f"policy:{levels.policy}@3"):
        assert_same(plan_of(name, levels), expected)


def test_a_policy_of_the_paper_runs_documents_alone():
    for name in ("paper", "policy:paper"):
        found = plan_of(name, Setting(MODEL))
        assert_same(found, extracted(PaperPolicy(), []))
        assert found.fingerprint.advisory["prefix"] == prefix_digest([])
    fixed = extracted(PaperPolicy(normalisation="remaining"), [])
    for name in ("paper-fixed", "policy:paper-fixed"):
        assert_same(plan_of(name, Setting(MODEL)), fixed)
    assert_same(plan_of("sift", Setting(MODEL, None, "paper-fixed")), fixed)
    assert fixed.density.ca.share > extracted(PaperPolicy(), []).density.ca.share


def test_a_policy_from_a_file_beside_an_index_is_extracted_behind_the_index_s_prefix(folder):
    """And not served from the index, which lacks a document."""
    setting = Setting(MODEL, open_index(folder))
    path = str(folder / "mine.yaml")
    expected = extracted(load_policy(path), WRITER.prefix())
    assert_same(plan_of(f"policy:{path}", setting), expected)


def test_the_oracle_takes_its_numbers_from_the_setting_or_a_file(folder, setting):
    for name in ("oracle", f"oracle:{setting.policy}"):
        found = plan_of(name, setting)
        assert found.sparse.layout.levels == 1
        assert 0 < found.density.ca.share < 1
    other = plan_of(f"oracle:{folder / 'levels.yaml'}", setting)
    assert other.sparse.layout.levels == 2


@pytest.mark.parametrize(
    ("name", "same", "other"),
    [
        ("epic", "epic:32", "epic:33"),
        ("kv-reuse", "epic:0", "epic:1"),
        ("cacheblend", "cacheblend:15", "cacheblend:16"),
    ],
)
def test_arguments_and_defaults_of_methods_that_reuse_kv(setting, name, same, other):
    found = [density_after_prefill(treatment_of(n, setting)) for n in (name, same, other)]
    assert found[0] == found[1] < found[2]


def test_all_of_a_document_may_be_recomputed(setting):
    for name in ("epic:1048576", "cacheblend:100"):
        assert density_after_prefill(treatment_of(name, setting)) == 1.0


def test_no_cross_leaves_glue_and_own_documents(setting):
    plan = plan_of("no-cross", setting)
    assert (plan.hits, plan.density.ca.visited) == (3, 0)
    assert plan.density.la.share == 1.0
    mask = naive_mask(plan.sparse, 0)[0]
    first = len(WRITER.prefix())
    assert mask[-1].all() and mask[:, :first].sum() == np.tri(*mask.shape)[:, :first].sum()


def test_a_document_is_extracted_once_however_often_it_comes(monkeypatch):
    extracted_lengths: list[int] = []
    extract = Extractor.extract

    def counted(self, ids):
        extracted_lengths.append(len(ids))
        return extract(self, ids)

    monkeypatch.setattr(Extractor, "extract", counted)
    setting = Setting(MODEL)
    method = make_methods(["paper"], setting)["paper"]
    for prompt in ([*PROMPT[:3], *PROMPT[1:]], PROMPT):
        plan = method(prompt).plan
        assert plan is not None and plan.misses == 0
    assert extracted_lengths == [len(A), len(B), len(C)]
    # Levels share too, and other names for the same policy.
    make_methods(["policy:paper", "policy:paper@1"], setting)["policy:paper"](PROMPT)
    assert len(extracted_lengths) == 3


def test_long_documents_are_split_as_a_build_splits_them():
    small, start = loaded(tiny("llama", max_position_embeddings=250)), len(WRITER.prefix())
    plan = plan_of("paper", Setting(small), PROMPT[:2])
    assert len(A) > 250
    assert [(span.start, span.stop) for span in plan.sparse.spans] == [
        (start, start + 250),
        (start + 250, start + len(A)),
    ]


def test_the_same_name_twice_is_one_method(setting):
    assert list(make_methods(["dense", "no-cross", "dense"], setting)) == ["dense", "no-cross"]


# --- the setting -------------------------------------------------------------------------------


def test_prompts_have_the_texts_of_the_index(folder):
    other = loaded(MODEL.model, PromptTemplate(prefix="Else:", query="{question}!"))
    index = open_index(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert Setting(other, index).prefix == WRITER.prefix()
    assert Setting(other).prefix == MODEL.tokenizer("Else:").input_ids
    assert Setting(other, index).writer.query("x") == MODEL.tokenizer("x!").input_ids


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("magic", "", ":", "Dense", "sift2", "policy-x", " sift"),
        *("dense:1", "paper:2", "paper-fixed:x", "no-cross:0", "kv-reuse:3"),
    ],
)
def test_an_unknown_name_is_refused_listing_the_known_ones(setting, name):
    with pytest.raises(UsageError) as caught:
        make_methods(["dense", name], setting)
    assert str(caught.value) == f"expected methods of {KNOWN}; found {name!r}"


def test_no_name_is_refused(setting):
    with pytest.raises(UsageError, match="expected methods of dense, .*; found none"):
        make_methods([], setting)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sift:9", "expected level of 1-bit masks as a whole number of 1 to 1, found '9'"),
        ("sift:0", "expected level of 1-bit masks as a whole number of 1 to 1, found '0'"),
        ("sift:x", "expected level of 1-bit masks as a whole number of 1 to 1, found 'x'"),
        ("sift:1.0", "expected level of 1-bit masks as a whole number of 1 to 1, found '1.0'"),
        ("policy:paper@2", "level of 1-bit masks as a whole number of 1 to 1, found '2'"),
        ("policy:paper@x", "level of 1-bit masks as a whole number of 1 to 1, found 'x'"),
        ("policy:@1", "expected a policy (paper, paper-fixed, probe) or a YAML file, found ''"),
        ("epic:x", "expected tokens as a whole number of 0 to 1048576, found 'x'"),
        ("epic:-1", "expected tokens as a whole number of 0 to 1048576, found '-1'"),
        ("cacheblend:0", "expected percent as a whole number of 1 to 100, found '0'"),
        ("cacheblend:101", "expected percent as a whole number of 1 to 100, found '101'"),
        ("cacheblend:0.15", "expected percent as a whole number of 1 to 100, found '0.15'"),
        ("cacheblend:²", "expected percent as a whole number of 1 to 100, found '²'"),
        ("policy", "expected a policy (paper, paper-fixed, probe) or a YAML file, found ''"),
        ("policy:no.yaml", "a YAML file, found 'no.yaml'"),
        ("oracle:no.yaml", "a YAML file, found 'no.yaml'"),
        ("oracle:paper", "expected a probe policy for the oracle's numbers, found 'paper'"),
    ],
)
def test_a_wrong_argument_is_refused(setting, name, message):
    with pytest.raises(UsageError) as caught:
        make_methods(["dense", name], setting)
    assert message in str(caught.value)


@pytest.mark.parametrize(("bits", "most"), [(1, 1), (2, 3)])
def test_levels_that_an_index_or_a_policy_lacks_are_refused(folder, bits, most):
    policy = str(folder / ("mine.yaml" if bits == 1 else "levels.yaml"))
    message = f"expected level of {bits}-bit masks as a whole number of 1 to {most}, found"
    for level in (0, most + 1):
        with pytest.raises(UsageError, match=f"{message} '{level}'"):
            make_methods([f"sift:{level}"], Setting(MODEL, open_index(folder, bits)))
        with pytest.raises(UsageError, match=f"{message} '{level}'"):
            make_methods([f"sift:{level}"], Setting(MODEL, None, policy))


def test_policies_that_results_could_not_tell_apart_are_refused(folder):
    other = folder / "other"
    other.mkdir(exist_ok=True)
    (other / "mine.yaml").write_text("rule: paper\n")
    names = [f"policy:{folder / 'mine.yaml'}", f"policy:{other / 'mine.yaml'}"]
    with pytest.raises(UsageError, match="mine.yaml' would both be 'policy:mine'; rename one"):
        make_methods(names, Setting(MODEL))


def test_a_folder_may_have_an_at_sign(folder):
    other = folder / "me@home"
    other.mkdir(exist_ok=True)
    (other / "mine.yaml").write_text("rule: paper\n")
    for name in (f"policy:{other / 'mine.yaml'}", f"policy:{other / 'mine.yaml'}@1"):
        assert_same(plan_of(name, Setting(MODEL)), extracted(PaperPolicy(), []))


def test_the_setting_s_policy_may_be_wrong_too():
    with pytest.raises(UsageError, match="a YAML file, found 'none'"):
        make_methods(["sift"], Setting(MODEL, None, "none"))
    with pytest.raises(UsageError, match="a probe policy for the oracle's numbers, found 'paper'"):
        make_methods(["oracle"], Setting(MODEL, None, "paper"))
    assert make_methods(["dense"], Setting(MODEL, None, "none"))
