"""The network below the nodes: a switch, a router between segments, the link of the host."""
