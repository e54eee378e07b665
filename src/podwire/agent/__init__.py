"""The node daemon: a composition root and nothing else."""
