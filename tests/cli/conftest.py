"""What tests of the command line share."""

import warnings

import pytest


@pytest.fixture(autouse=True)
def keep_warnings():
    """Commands install their own way of showing warnings; tests keep theirs."""
    show = warnings.showwarning
    yield
    warnings.showwarning = show
