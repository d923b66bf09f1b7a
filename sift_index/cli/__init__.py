"""The command line: the same nouns as the Python API, one file per command."""
