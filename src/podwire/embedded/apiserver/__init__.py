"""Embedded Kubernetes API: store, HTTP, watch, patch, validation, discovery, tables."""
