"""The Virtual Private Cloud of AWS."""
