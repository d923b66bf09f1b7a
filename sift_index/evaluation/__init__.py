"""Fidelity: how close a sparse prefill stays to the dense one, and at what density."""
