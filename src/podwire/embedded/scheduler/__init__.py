"""The scheduler of local clusters: usage of nodes, filters, scores, the decision, and the loop that binds."""
