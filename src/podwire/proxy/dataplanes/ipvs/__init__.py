"""Services in IPVS: the kernel's own balancer, with constant rules of iptables and sets for what it does not do."""
