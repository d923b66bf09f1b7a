"""Plans sent as plain values and restored: the same plan, or a clear refusal."""

import json

import pytest
import torch

from sift_index.errors import FingerprintMismatchError, UsageError
from sift_index.prompts import Segment
from sift_index.runtime.index import SiftIndex
from sift_index.runtime.request import to_request
from tests.plans import layout_of, loaded, tiny, tokens, write_index

MODEL = loaded(tiny("llama"))
DOCUMENTS = {name: [tokens(n, seed=n)] for name, n in {"a": 300, "b": 40, "c": 129}.items()}


def opened(root, documents) -> SiftIndex:
    write_index(root, MODEL, layout_of(MODEL.model, levels=2), documents, longest=500)
    return SiftIndex.open(root, MODEL.model, MODEL.tokenizer)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return opened(tmp_path_factory.mktemp("request") / "i", DOCUMENTS)


@pytest.fixture
def plan(index):
    writer = index.writer(MODEL)
    parts = [DOCUMENTS["a"][0], tokens(20), [], DOCUMENTS["c"][0], DOCUMENTS["b"][0]]
    ends = [Segment(ids, glue=True) for ids in (writer.prefix(), writer.query("why?"))]
    return index.compose([ends[0], *parts, ends[1]], level=2)


def test_a_plan_comes_back_as_it_was(index, plan):
    found = index.from_request(json.loads(json.dumps(to_request(plan))))
    assert (found.ids, found.outcomes, found.warnings) == (plan.ids, plan.outcomes, plan.warnings)
    assert (found.sparse.level, found.sparse.layout) == (2, plan.sparse.layout)
    for one, other in zip(found.sparse.spans, plan.sparse.spans, strict=True):
        assert (one.start, one.stop) == (other.start, other.stop)
        assert torch.equal(one.ca, other.ca)
        assert (one.la is None) == (other.la is None)
    assert to_request(found) == to_request(plan)


def test_what_the_server_lacks_is_glue(tmp_path, plan):
    some = opened(tmp_path / "i", {"a": DOCUMENTS["a"], "b": DOCUMENTS["b"]})
    found = some.from_request(to_request(plan))
    assert [outcome.reason for outcome in found.outcomes][1:6] == [
        "indexed",
        "not_indexed",
        "empty",
        "not_indexed",
        "indexed",
    ]
    assert (found.hits, found.misses) == (2, 2)


def changed(request, **values):
    return {**request, **values}


WRONG = {
    "format 1, found 'list'": lambda r: [r],
    "format 1, found '7'": lambda r: changed(r, format=7),
    "'ids' of type list": lambda r: changed(r, ids="abc"),
    "a segment from 0 on": lambda r: changed(r, segments=r["segments"][1:]),
    "segments up to": lambda r: changed(r, segments=r["segments"][:-1]),
    r"segments of \[start, stop": lambda r: changed(r, segments=[[0, 1]]),
    "for the ids of": lambda r: changed(r, ids=[r["ids"][0], *r["ids"][:-1]]),
    "token ids": lambda r: changed(r, ids=["x", *r["ids"][1:]]),
    "integers 0": lambda r: changed(r, ids=[-5, *r["ids"][1:]]),
    "warnings as texts": lambda r: changed(r, warnings=[1]),
    "a reason for glue": lambda r: changed(
        r, segments=[[*r["segments"][0][:3], "boo", None], *r["segments"][1:]]
    ),
    r"a reason for glue, found \"\[0, \d+, 'glue', \[\]": lambda r: changed(
        r, segments=[[*r["segments"][0][:3], [], None], *r["segments"][1:]]
    ),
    "a reason for span": lambda r: changed(
        r,
        segments=[
            r["segments"][0],
            [*r["segments"][1][:3], "no_prefix", r["segments"][1][4]],
            *r["segments"][2:],
        ],
    ),
    "behind a prefix": lambda r: changed(r, segments=[[0, len(r["ids"]), "span", "indexed", "00"]]),
    "expected a level of 1 to 3": lambda r: changed(r, level=9),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_no_request_is_refused(index, plan, message):
    with pytest.raises(UsageError, match=message):
        index.from_request(WRONG[message](to_request(plan)))


def test_a_request_of_another_build_is_refused(index, plan):
    with pytest.raises(FingerprintMismatchError, match="composed with build"):
        index.from_request(changed(to_request(plan), build="0" * 64))
