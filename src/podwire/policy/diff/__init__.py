"""Finds the connections whose verdict changes between two sets of policies: ``podwire policy diff``."""
