"""Writes on each policy on how many nodes it is in force."""
