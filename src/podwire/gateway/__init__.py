"""Ingress and Gateway API."""
