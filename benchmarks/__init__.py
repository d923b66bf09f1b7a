"""Comparisons with dense attention and peers; their numbers live in `results/`."""
