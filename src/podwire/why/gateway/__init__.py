"""Explains which route the gateway takes for a URL."""
