"""Follows one packet through state values and says which rule decided."""
