"""The scheduler of local clusters: facts, filters, scores, the decision, and the loop that binds."""
