"""Pod to pod between nodes."""
