"""Cases and rows: their names are those under which numbers are looked for."""

import pytest

from sift_index.bench.cases import GLUE
from sift_index.bench.ttft_cases import SIFT, Row, TTFTCase, TTFTOptions
from sift_index.errors import UsageError


def test_rows_of_the_usual_run_have_the_fixed_names():
    rows = [row.name for row in TTFTOptions(disk=True).rows()]
    assert rows == [
        *("dense-fa3", "dense-cudnn", "default", "ca25", "ca10"),
        *("kv-reuse-dram", "kv-reuse-disk", "cacheblend15-dram", "cacheblend15-disk"),
    ]
    assert not any(name.endswith("disk") for name in (row.name for row in TTFTOptions().rows()))
    names = [case.row_name("ca10") for case in TTFTOptions().cases()]
    assert names[:4] == ["16k-ca10", "32k-ca10", "64k-ca10", "128k-ca10"]
    assert names[4:] == [f"{name}-doc4k" for name in names[:4]]


@pytest.mark.parametrize(("ca", "name"), [(0.05, "ca5"), (0.125, "ca12.5"), (0.29, "ca29")])
def test_densities_name_rows(ca, name):
    assert Row(SIFT, ca).name == name


def test_documents_lie_back_to_back_between_glue():
    case = TTFTCase(1000, 300)
    assert case.spans == [(64, 364), (364, 664), (664, 936)]
    assert case.tokens - case.spans[-1][1] == GLUE
    assert (case.label, case.sparse_la) == ("1000-doc300", False)
    assert TTFTCase(8192, 4096).sparse_la and not TTFTCase(8192, 1024).sparse_la


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": ()}, "--tokens: expected different values"),
        ({"documents": (512, 512)}, "--documents: expected different values"),
        ({"documents": (0,)}, "--documents: expected 1 token or more, found 0"),
        ({"tokens": (4096,)}, "--tokens: expected 4,224 or more"),
        ({"densities": (1.0,)}, "a density: expected between 0 and 1, found 1.0"),
        ({"kinds": ("dense-fa4",)}, "--rows: expected some of dense-fa3, "),
    ],
)
def test_values_that_no_case_can_be_made_of(options, message):
    with pytest.raises(UsageError, match=message.replace(".", r"\.")):
        TTFTOptions(**options)
