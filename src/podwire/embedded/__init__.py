"""The small Kubernetes of local clusters: API server, kubelet, workload controllers, scheduler."""
