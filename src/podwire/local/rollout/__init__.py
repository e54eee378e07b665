"""Upgrades of a local cluster from one build of podwire to another, step by step, and back."""
