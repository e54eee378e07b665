"""Services in iptables: kube-proxy's chains, of which a change writes only those that it is about."""
