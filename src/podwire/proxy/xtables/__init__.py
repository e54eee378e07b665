"""Shared parts of the data planes that write iptables rules: matches, compiled Services, access to the kernel."""
