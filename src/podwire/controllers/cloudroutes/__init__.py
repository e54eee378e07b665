"""Routes of a cloud's network to the pods of nodes: the provider interface, a pure plan, and the loop."""
