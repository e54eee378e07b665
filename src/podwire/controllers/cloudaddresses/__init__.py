"""Addresses of a cloud's interfaces for pods: the provider interface, a pure plan, and the loop."""
