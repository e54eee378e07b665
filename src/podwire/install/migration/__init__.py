"""``podwire migrate``: takes a cluster from another network to podwire, node by node, and back."""
