"""Addresses of pods on one node."""
