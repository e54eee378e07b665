"""The status of EgressPolicies."""
