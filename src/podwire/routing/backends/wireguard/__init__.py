"""Encrypted packets between nodes, by WireGuard."""
