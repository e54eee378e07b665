"""Objects that every local cluster has."""
