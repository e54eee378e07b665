"""Finds probable mistakes in policies: ``podwire policy check``."""
