"""Load-balancer addresses and their announcement."""
