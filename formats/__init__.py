"""The SIFT index on disk: bits, blobs, packs, key tables, manifests, fingerprints.

Needs numpy and pyarrow (and zstandard where a blob says so), never torch: a reader in another
serving stack can depend on this package alone. SPEC.md beside this file is the contract.
"""
