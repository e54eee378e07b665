"""Services in IPVS, the kernel's load balancer; constant iptables rules and sets do what IPVS cannot do."""
