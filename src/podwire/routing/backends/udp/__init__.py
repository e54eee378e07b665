"""Pods of other nodes by a process: packets leave a TUN device and travel between nodes in UDP packets."""
