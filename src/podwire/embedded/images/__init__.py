"""What a container image means on this machine."""
