"""Speed of the kernels beside their peers, in one run on the same data."""
