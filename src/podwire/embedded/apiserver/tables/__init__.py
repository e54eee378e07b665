"""Printer columns of every kind, as ``kubectl get`` shows them; all pure."""
