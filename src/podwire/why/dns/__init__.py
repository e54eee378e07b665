"""Explains what happens to a DNS name that a pod asks for."""
