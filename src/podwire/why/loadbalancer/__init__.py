"""Explains addresses of load balancers: their pool, and the nodes that announce them."""
