"""Ingress (``networking.k8s.io/v1``): which Ingresses are ours, their annotations, and their routes."""
