"""A cluster that exists only as manifests."""
