"""Densities by layer and head: the mean that was asked for, the shape of the measured index."""

import numpy as np
import pytest
import yaml

from benchmarks.density_table import CA_CASE, LA_CASE, QUALITY, measured, text_of
from sift_index.bench.ttft_density import densities, measured_density, scaled_to, stretched
from sift_index.errors import UsageError
from sift_index.evaluation.results import read_results
from sift_index.formats.reader import IndexReader
from sift_index.kernels.bits import ca_keys
from sift_index.runtime.masks import span_mask
from tests import plans

MEASURED = measured_density()


@pytest.mark.parametrize("mean", [MEASURED.ca_mean, 0.25, 0.1, 0.02, 0.9])
def test_the_mean_is_what_was_asked_for(mean):
    found = densities(MEASURED.ca, 32, 32, mean)
    assert found.shape == (32, 32)
    assert found.mean() == pytest.approx(mean, abs=1e-6)
    assert found.min() >= 0 and found.max() <= 1


def test_layers_keep_their_shape():
    found = densities(MEASURED.ca, 32, 32, 0.1)
    before = np.interp(np.linspace(0, 29, 32), np.arange(30), MEASURED.ca.mean(1))
    assert np.corrcoef(found.mean(1), before)[0, 1] > 0.98
    assert not found[-1].any()  # as under the default policy, which marks nothing there
    assert found[0].mean() > 2 * found[-2].mean()


def test_heads_keep_their_spread():
    found = stretched(MEASURED.ca, 30, 32)
    assert np.allclose(found.max(1), MEASURED.ca.max(1))
    assert np.allclose(found.min(1), MEASURED.ca.min(1))
    assert np.allclose(np.median(found, 1), np.median(MEASURED.ca, 1), atol=0.05)
    assert np.array_equal(stretched(MEASURED.ca, 30, 9), np.sort(MEASURED.ca, 1))


def test_high_means_are_clipped_and_others_only_scaled():
    table = np.array([[0.1, 0.2], [0.4, 0.0]])
    assert np.allclose(scaled_to(table, 0.35), 2 * table)
    found = scaled_to(table, 0.5)
    assert found[1, 0] == 1.0 and found[1, 1] == 0.0
    assert found[0, 1] == pytest.approx(2 * found[0, 0])
    assert found.mean() == pytest.approx(0.5)


def test_heads_come_in_random_order_of_a_seed():
    once, again = (densities(MEASURED.ca, 4, 8, 0.1, seed=3) for _ in range(2))
    other = densities(MEASURED.ca, 4, 8, 0.1, seed=4)
    assert np.array_equal(once, again) and not np.array_equal(once, other)
    assert np.array_equal(np.sort(once, 1), np.sort(other, 1))


@pytest.mark.parametrize("mean", [0.0, -0.1, 0.98])
def test_a_mean_out_of_reach_is_refused(mean):
    with pytest.raises(UsageError, match=r"above 0 and at most 0\.9"):
        densities(MEASURED.ca, 32, 32, mean)


def test_the_packaged_means_are_those_that_were_measured():
    rows = read_results(QUALITY)
    ca, la = rows[CA_CASE, "ca_density"]["value"], rows[LA_CASE, "la_density"]["value"]
    assert MEASURED.ca_mean == pytest.approx(ca, abs=5e-4)
    assert MEASURED.la_long == pytest.approx(la, abs=5e-4)


def test_a_table_is_made_of_the_keys_that_are_marked(tmp_path):
    shape = plans.tiny("llama")
    layout = plans.layout_of(shape)
    documents = {"a": [plans.tokens(70)], "b": [plans.tokens(200)]}
    index = plans.write_index(tmp_path / "i", plans.loaded(shape), layout, documents)
    reader = IndexReader.open(index)
    shares, count, tokens = measured(reader)
    assert (shares.shape, count, tokens) == ((2, 4), 2, 270)
    spans = [plans.masks_of(ids, layout) for [ids] in documents.values()]
    on = [ca_keys(span_mask(row, 0), 1, layout, 1)[2].sum() for row in spans]
    assert shares[1, 2] == pytest.approx(float(sum(on)) / 270)
    values = yaml.safe_load(text_of(shares, "here"))
    assert np.allclose(values["ca"], shares, atol=1e-4) and values["model"] == "smollm2-135m"
