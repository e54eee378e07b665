"""Tests connectivity with real packets: plans attempts, runs them, and shows the results."""
