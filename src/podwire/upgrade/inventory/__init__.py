"""The inventory of a cluster's network: objects of the API, the layout of the cluster, its components."""
