"""What must be right before an upgrade begins: nodes, workloads, custom kinds, configurations of networks."""
