"""Tuning: the sparsest masks that stay as close to dense attention as asked, on a user's data."""
