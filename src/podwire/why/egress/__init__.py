"""Answers about EgressPolicies."""
