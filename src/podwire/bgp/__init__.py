"""Drives the BGP engine."""
