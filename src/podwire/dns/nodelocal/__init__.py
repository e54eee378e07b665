"""The node's own DNS server at the address of the DNS Service: the rules and routes that lead pods to it."""
