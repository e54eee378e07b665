"""Explains what becomes of a DNS name that a pod asks for."""
