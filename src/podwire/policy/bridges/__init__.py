"""Pods that are ports of a bridge: whose frames are whose, and what nothing else would see."""
