"""Finds the devices of pods that other CNI plugins wired on this node."""
