"""Connectivity with real packets: what to try, trying it, showing it."""
