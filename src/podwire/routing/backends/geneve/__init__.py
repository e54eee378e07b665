"""Geneve tunnels."""
