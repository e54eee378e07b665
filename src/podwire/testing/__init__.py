"""Shipped fakes that keep the real rules, and the pytest plugin."""
