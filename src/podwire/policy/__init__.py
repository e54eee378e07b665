"""NetworkPolicy."""
