"""The explainer of routing: how packets of a connection travel between nodes."""
