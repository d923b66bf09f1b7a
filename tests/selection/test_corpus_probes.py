"""Probe texts sampled from a corpus: the same ones in any order, joined, never cut."""

import random
import tracemalloc
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sift_index.errors import UsageError
from sift_index.selection.corpus_probes import PROBES, CorpusProbe, sample_probes
from sift_index.selection.extractor import Extractor
from sift_index.selection.policy import ProbePolicy
from sift_index.selection.probes import probe_texts
from tests.plans import loaded, tiny

POLICY = ProbePolicy(window=16, probe_rows=64, probe_tokens=100)


def sample(documents, policy: ProbePolicy = POLICY, count=len) -> list[CorpusProbe]:
    return sample_probes(documents, count, policy)


def document(number: int, length: int = 40) -> tuple[str, str]:
    text = "".join(random.Random(number).choices("abcdefgh ", k=length))
    return f"{number:03}.txt", f"x{text}y"


def by_hash(documents) -> list[tuple[str, str]]:
    return sorted(documents, key=lambda pair: blake2b(pair[1].encode(), digest_size=16).digest())


def by_hand(documents) -> list[CorpusProbe]:
    """Return the sample from all texts in memory."""
    found, names, texts = [], [], []
    for name, text in by_hash(documents):
        names.append(name)
        texts.append(text)
        if len("\n\n".join(texts)) >= POLICY.probe_tokens:
            found.append(CorpusProbe("\n\n".join(texts), tuple(names)))
            names, texts = [], []
    left = [CorpusProbe("\n\n".join(texts), tuple(names))] if len("\n\n".join(texts)) >= 64 else []
    return [*found, *left][:PROBES]


def test_short_documents_are_joined_until_they_are_long_enough():
    documents = [document(n) for n in range(200)]
    found = sample(documents)
    assert found == by_hand(documents)
    assert [len(probe.documents) for probe in found] == [3, 3, 3, 3]
    assert all(probe.text.count("\n\n") == 2 for probe in found)


def test_a_long_document_is_a_probe_alone_and_is_not_cut():
    documents = [document(n, 5000) for n in range(9)]
    assert [(p.documents, p.text) for p in sample(documents)] == [
        ((name,), text) for name, text in by_hash(documents)[:4]
    ]


def test_one_book_does_not_crowd_out_the_others():
    documents = [document(n) for n in range(200)]
    last = by_hash(documents)[30][1]
    book = next(b for n in range(999) if by_hash([b := document(n, 10**5), ("", last)])[0] == b)
    found = sample([*documents, book])
    assert found == by_hand([*documents, book])
    assert len(found) == PROBES and sum(probe.documents == (book[0],) for probe in found) <= 1


@given(st.lists(st.integers(0, 30), max_size=40), st.randoms(use_true_random=False))
def test_order_and_repeats_change_nothing(numbers, chance):
    documents = [document(n, 7 * n) for n in range(40)]
    shuffled = [*documents, *(documents[n] for n in numbers)]
    chance.shuffle(shuffled)
    assert sample(shuffled) == sample(documents) == by_hand(documents)


def test_names_do_not_matter_and_equal_texts_go_by_their_first_name():
    documents = [document(n) for n in range(60)]
    renamed = [(f"other-{name}", text) for name, text in documents]
    found = sample(documents)
    assert [probe.text for probe in sample(renamed)] == [probe.text for probe in found]
    for both in ([*documents, *renamed], [*renamed, *documents]):
        assert sample(both) == found


def test_blank_documents_and_line_ends_do_not_count():
    documents = [document(n, 300) for n in range(5)]
    windows = [(name, text.replace(" ", "\r\n")) for name, text in documents]
    plain = [(name, text.replace(" ", "\n")) for name, text in documents]
    assert sample([("a", ""), ("b", " \n\t"), *windows, *plain]) == sample(plain)


def test_a_small_corpus_gives_fewer_probes_and_a_shorter_last_one():
    documents = by_hash([document(n, 98) for n in range(3)] + [document(9, 70)])
    found = sample(documents)
    assert found == by_hand(documents)
    assert 1 < len(found) < 4
    (one,) = sample([document(1, 70)])
    assert len(one.text) == 72


@pytest.mark.parametrize(
    ("policy", "least"),
    [
        (POLICY, 64),
        (ProbePolicy(window=128), 128),
        (ProbePolicy(window=1, probe_tokens=20), 20),
    ],
)
def test_a_corpus_without_one_text_is_refused(policy, least):
    for documents, found in (([document(1, least - 3)], least - 1), ([], 0), ([("a", " ")], 0)):
        with pytest.raises(UsageError) as caught:
            sample(documents, policy)
        message = f"at least {least} tokens of text for probe_source 'corpus', found {found}; use"
        assert message in str(caught.value) and "builtin" in str(caught.value)
    assert len(sample([document(1, least - 2)], policy)) == 1


def test_what_is_kept_does_not_grow_with_the_corpus():
    def peak(count: int) -> int:
        tracemalloc.start()
        sample(document(n, 2000) for n in range(count))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(4000) < 2 * peak(40)


def test_an_unresolved_corpus_says_where_it_works():
    for use in (
        lambda: probe_texts("corpus"),
        lambda: Extractor(loaded(tiny("llama")), ProbePolicy(probe_source="corpus"), []),
    ):
        with pytest.raises(UsageError, match="`sift-index build` and `sift-index tune`.*give a fo"):
            use()
