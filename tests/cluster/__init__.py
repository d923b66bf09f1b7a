"""Builds on a cluster: a package, so that its fixtures end with its last test."""
