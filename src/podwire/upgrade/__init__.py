"""Upgrades while traffic flows."""
