"""Which cases options make, what they are called, and which options make none."""

from dataclasses import replace

import pytest

from sift_index.bench.cases import Case, CaseOptions
from sift_index.errors import UsageError

SMALL = CaseOptions(tokens=(4096, 16384), densities=(1.0, 0.1), aligned=False)


def test_names_say_what_a_case_is():
    names = {
        Case(65536, 128, 1024, 0.1): "d128/64K/docs-1024/ca-0.10",
        Case(131072, 64, 8192, 0.05, 0.05): "d64/128K/docs-8192/ca-0.05/la-0.05",
        Case(4096, 128, 1024, 1.0, aligned=True): "d128/4K/aligned-1024/ca-1.00",
        Case(5000, 64, 128, 0.125): "d64/5000/docs-128/ca-0.125",
    }
    assert [case.label for case in names] == list(names.values())


def test_the_defaults_are_all_different_and_end_with_the_aligned_ones():
    cases = CaseOptions().cases()
    assert len({case.label for case in cases}) == len(cases) == 2 * 4 * 5 + 4 * 5
    assert [case.aligned for case in cases] == [False] * 40 + [True] * 20
    assert {case.head_dim for case in cases if case.aligned} == {128}


def test_cases_run_in_the_order_of_the_options():
    labels = [case.label for case in replace(SMALL, head_dims=(64, 128)).cases()]
    assert labels == [
        f"d{dim}/{tokens}/docs-1024/ca-{ca}"
        for dim in (64, 128)
        for tokens in ("4K", "16K")
        for ca in ("1.00", "0.10")
    ]


def test_long_documents_also_run_with_local_bits():
    options = replace(SMALL, tokens=(16384,), documents=(1024, 8192), head_dims=(128,))
    assert [(case.document, case.ca, case.la) for case in options.cases()] == [
        *((1024, 1.0, None), (1024, 0.1, None)),
        # LA of density 1 is dense LA.
        *((8192, 1.0, None), (8192, 0.1, None), (8192, 0.1, 0.1)),
    ]
    found = replace(options, la_density=0.25).cases()
    assert [case.la for case in found] == [None, None, None, 0.25, None, 0.25]


def test_aligned_cases_take_the_first_documents_that_fit():
    options = CaseOptions(tokens=(4096,), densities=(0.5,), documents=(100, 256, 512))
    assert [case.document for case in options.cases() if case.aligned] == [256]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": ()}, r"--tokens: expected different values, found \[\]"),
        ({"tokens": (4096, 4096)}, "--tokens: expected different values"),
        ({"densities": (0.5, 0.0)}, "a density: expected above 0 and at most 1, found 0.0"),
        ({"densities": (1.5,)}, "a density: expected above 0 and at most 1, found 1.5"),
        ({"densities": (float("nan"),)}, "a density: expected above 0 and at most 1, found nan"),
        ({"la_density": -1.0}, "a density: expected above 0 and at most 1, found -1.0"),
        ({"head_dims": (96,)}, "--head-dims: expected 64 or 128, found 96"),
        ({"page_size": 48}, "--page-size: expected one of 8, 16, 32, 64, 128, found 48"),
        ({"heads": 6, "kv_heads": 4}, "--heads: expected a multiple of --kv-heads, found 6 and 4"),
        ({"kv_heads": 0}, "--heads: expected a multiple of --kv-heads, found 32 and 0"),
        ({"documents": (0,)}, "--documents: expected 1 token or more, found 0"),
        ({"documents": (1024, 8192)}, r"--tokens: expected 8,320 or more \(a document of 8,192"),
        (
            {"documents": (3900,), "aligned": True},
            r"aligned cases: expected tokens and documents that are multiples of 128, found "
            r"\[4096, 16384\] and \[3900\]; take others, or --no-aligned",
        ),
        ({"tokens": (5000,), "aligned": True}, "aligned cases: expected tokens and documents"),
        ({"documents": (3968,), "aligned": True}, "--tokens: expected 4,224 or more"),
    ],
)
def test_options_that_no_case_can_be_made_of_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        replace(SMALL, **changes).cases()
