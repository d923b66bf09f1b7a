"""One index for all tests of the serving layer."""

import pytest

from sift_index.runtime.index import SiftIndex
from tests.serving.served import index_in


@pytest.fixture(scope="package")
def index(tmp_path_factory) -> SiftIndex:
    """Masks of their own for each query head."""
    return index_in(tmp_path_factory.mktemp("index") / "heads")


@pytest.fixture(scope="package")
def shared_index(tmp_path_factory) -> SiftIndex:
    """Masks shared by the query heads of a KV head, of two levels."""
    return index_in(tmp_path_factory.mktemp("index") / "kv", mask_heads=2, page_size=8, levels=2)
