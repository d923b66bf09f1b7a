"""Bridges to model libraries: each hands Q, K and V to this project's attention."""
