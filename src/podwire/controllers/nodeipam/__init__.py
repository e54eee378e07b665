"""Pod CIDRs of nodes: a pure allocator and the loop that writes ``spec.podCIDRs``."""
