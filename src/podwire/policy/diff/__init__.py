"""Whose verdicts change between two sets of policies: ``podwire policy diff``."""
