"""Drives the BGP engine: the configuration as values, and their text for BIRD 2."""
