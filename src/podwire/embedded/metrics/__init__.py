"""Resource usage of nodes, pods and containers: kubelet statistics and the API group metrics.k8s.io."""
