"""Cluster facts as frozen values; the only reader of Kubernetes field names."""
