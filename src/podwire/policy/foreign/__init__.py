"""Pods that other CNI plugins wire: where they are on this node."""
