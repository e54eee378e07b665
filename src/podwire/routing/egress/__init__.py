"""EgressPolicies: pods that leave the cluster with an address of their own."""
