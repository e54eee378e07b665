"""The workload controllers of local clusters: Deployment, ReplicaSet, DaemonSet, StatefulSet, Job and others."""
