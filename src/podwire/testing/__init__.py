"""Clusters for tests of manifests, and the pytest plugin."""
