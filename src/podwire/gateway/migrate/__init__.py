"""Ingresses of ingress-nginx as objects of Gateway API, with a report of what could not be carried over."""
