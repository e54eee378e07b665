"""The only Kubernetes API client: list, watch, informer, write, lease."""
