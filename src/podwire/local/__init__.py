"""Local clusters: fabric, processes, scheduler, workloads, kubelet."""
