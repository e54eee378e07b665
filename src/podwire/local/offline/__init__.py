"""Reads a cluster from manifests, without a running cluster."""
