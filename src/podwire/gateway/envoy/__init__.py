"""Envoy as the engine: its configuration from an entry, the server that feeds it, its process."""
