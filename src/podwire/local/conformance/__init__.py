"""Runs files of conformance cases against a local cluster with real packets."""
