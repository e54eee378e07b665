"""Flannel beside podwire: its configuration, its annotations of Nodes, its subnet file."""
