"""The programs that run for container images on this machine."""
