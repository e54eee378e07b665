"""The data plane interface, mode switch and commit loop that Services and policies share."""
