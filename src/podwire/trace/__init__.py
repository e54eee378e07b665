"""Follows one packet through state values and names the rule that decides."""
